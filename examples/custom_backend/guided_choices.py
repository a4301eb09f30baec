"""A backend `choices` for guided_plugin: one of several texts, with a dictionary of
tokens and nothing else.

pip install examples/custom_backend
echo '{"choice": ["yes", "no"], "backend": "choices"}' | guided-plugin check -

The protocols that the classes implement are in `guided_plugin/grammar/base.py`.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np

import guided_plugin as gp
from guided_plugin.grammar.base import Grammar, MaskArray


class Matcher:
    """One request: the text after each of its tokens."""

    def __init__(
        self,
        texts: tuple[bytes, ...],
        ids: dict[bytes, list[int]],
        tokens: Sequence[bytes],
    ) -> None:
        self.texts, self.ids, self.tokens = texts, ids, tokens
        self.stops: tuple[int, ...] = ()
        self.history = [b""]

    @property
    def complete(self) -> bool:
        return self.history[-1] in self.texts

    def accept(self, token: int) -> bool:
        if token in self.stops:
            if self.complete:
                self.history.append(self.history[-1])
            return self.complete
        return bool(self.tokens[token]) and self.accept_text(self.tokens[token])

    def accept_text(self, text: bytes) -> bool:
        longer = self.history[-1] + text
        fits = any(one.startswith(longer) for one in self.texts)
        if fits:
            self.history.append(longer)
        return fits

    def fork(self) -> "Matcher":
        twin = Matcher(self.texts, self.ids, self.tokens)
        twin.stops, twin.history = self.stops, list(self.history)
        return twin

    def allowed(self) -> Iterator[int]:
        """The tokens that may come next."""
        so_far = self.history[-1]
        for text in self.texts:
            if text.startswith(so_far):
                rest = text[len(so_far) :]
                for end in range(1, len(rest) + 1):
                    yield from self.ids.get(rest[:end], ())
        if self.complete:
            yield from self.stops


class Batch:
    """The matchers of one step's rows."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self.matchers = matchers

    def accept(self, tokens: list[int]) -> list[bool]:
        return [
            matcher.accept(token)
            for matcher, token in zip(self.matchers, tokens, strict=True)
        ]

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        for matcher, row in zip(self.matchers, rows, strict=True):
            words = mask[row].view(np.uint32)
            words[:] = 0
            for token in matcher.allowed():  # bit i of word w allows token 32 * w + i
                words[token // 32] |= np.uint32(1 << token % 32)


class Backend:
    name = "choices"

    def __init__(self, vocabulary: gp.Vocabulary, config: gp.GuidedConfig) -> None:
        self.tokens = vocabulary.text_tokens  # control tokens have no text here
        self.ids: dict[bytes, list[int]] = {}
        for token, text in enumerate(self.tokens):
            self.ids.setdefault(text, []).append(token)

    def compile(self, spec: gp.OutputSpec) -> Grammar:
        start = time.perf_counter()
        if spec.kind != "choice":
            raise gp.errors.UnsupportedSpecError(
                f"the backend `choices` takes no {spec.kind}",
                hint='leave "backend" out',
            )
        texts = tuple(text.encode() for text in spec.document())
        return Grammar(
            spec,
            self.name,
            texts,
            sum(map(len, texts)),
            time.perf_counter() - start,
            bounded=True,
        )

    def start(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> Matcher:
        matcher = Matcher(grammar.handle, self.ids, self.tokens)
        matcher.stops = stop_token_ids
        return matcher

    def batch(self, matchers: Sequence[Matcher]) -> Batch:
        return Batch(matchers)


@gp.hookimpl
def register_backends(register) -> None:
    register("choices", Backend)
