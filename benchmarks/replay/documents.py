"""Which documents `benchmarks.replay` replays, and which of their tokens the grammar
forces.

    tools   valid instances of function-call schemas: those of BFCL, Glaive and MCP in MaskBench, as they are
    real    valid instances of the schemas of all sources
    free    descriptions in the sample's schemas, put one behind the other: plain text, never guided

Instances are written with their own order of keys, in one of `FORMS`, and ended with a
stop token. Left out are those that a fresh matcher refuses, and those longer than
`longest`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from benchmarks.samples import TextTokens, open_sample
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, SpecError
from guided_plugin.grammar import forced
from guided_plugin.grammar.base import Backend, Matcher
from guided_plugin.grammar.learnt_drafts import LearntDrafts
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

KINDS = ("tools", "real", "free")
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "compact": ("compact", {"separators": (",", ":")}),
    "spaced": ("spaced", {}),
    "flexible": ("flexible", {}),
    "indent2": ("flexible", {"indent": 2}),
    "indent4": ("flexible", {"indent": 4}),
}
"""By name: the whitespace that a spec asks for, and how `json.dumps` writes its
documents."""
_FUNCTION_CALLS = ("BFCL", "Glaiveai", "MCP")
"""How the names of files of function-calling sources begin."""
_FREE_TOKENS = 96
"""Of a free document: about what a tool call of the sample has."""

_VISITS = 4
"""So often each document is answered: from then on nothing more is learnt."""


@dataclass(frozen=True, slots=True)
class Document:
    """What one request is made to answer."""

    name: str
    spec: dict[str, Any] | None
    """As requests send it; None: unguided."""
    tokens: list[int]
    """With a stop token at the end."""
    forced: list[bool]
    """Of each token: whether the grammar leaves no byte of it open."""
    passes: int
    """Forward passes, if every draft that must follow were verified and nothing else
    were drafted."""


class Documents:
    """Chosen from a sample, the same for the same vocabulary."""

    def __init__(
        self, sample: Path, vocabulary: Vocabulary, longest: int, drafts: int
    ) -> None:
        self._vocabulary = vocabulary
        self._longest = longest
        self._drafts = drafts
        self._offers = forced.ForcedTokens(vocabulary)
        self._text = TextTokens(vocabulary)
        self._forced = ForcedTokens(vocabulary)
        with open_sample(sample) as files:
            self._files = [
                (PurePosixPath(name).name, json.loads(path.read_bytes()))
                for name, path in files.items()
            ]
        random.Random(1).shuffle(self._files)
        self.left_out: Counter[str] = Counter()
        """How many documents of each kind and form were tried and not taken."""

    def choose(self, kind: str, form: str, count: int) -> list[Document]:
        """At most so many of a kind. Raises GuidedError where there are none."""
        if kind == "free":
            return self._free(count)
        found: list[Document] = []
        for name, schema, data in self._instances(kind):
            document = self._document(name, schema, data, form)
            if document is None:
                self.left_out[f"{kind} {form}"] += 1
                continue
            found.append(document)
            if len(found) == count:
                break
        if not found:
            what = f"no document of kind {kind!r}"
            raise GuidedError(what, where="--sample", hint="docs/performance.md")
        return found

    def _instances(self, kind: str) -> Iterator[tuple[str, Any, Any]]:
        """The first valid instance of every schema before the second of any."""
        waiting = []
        for name, file in self._files:
            if kind == "real" or name.startswith(_FUNCTION_CALLS):
                valid = [test["data"] for test in file["tests"] if test["valid"]]
                waiting.append((name, file["schema"], iter(valid)))
        while waiting:
            left = []
            for name, schema, valid in waiting:
                for data in valid:
                    left.append((name, schema, valid))
                    yield name, schema, data
                    break
            waiting = left

    def _document(
        self, name: str, schema: Any, data: Any, form: str
    ) -> Document | None:
        whitespace, written = FORMS[form]
        text = json.dumps(data, ensure_ascii=False, **written)
        if len(text) > 16 * self._longest or not isinstance(schema, dict):
            return None
        tokens = self._text(text)
        if len(tokens) >= self._longest:
            return None
        spec = {"json_schema": schema, "whitespace": whitespace, "strict": True}
        try:
            parsed = OutputSpec.parse(spec)
            sure = self._forced(parsed, tokens)
        except GuidedError:
            return None  # a schema that is not served
        if sure is None:
            return None
        tokens = [*tokens, self._vocabulary.stop_token_ids[0]]
        return Document(
            name,
            spec,
            tokens,
            sure,
            self._passes(parsed, tokens),
        )

    def taught(self, documents: Sequence[Document]) -> int:
        """Forward passes of documents, if every draft were verified, after they were
        answered before."""
        learnt = LearntDrafts(
            self._vocabulary,
            self._offers,
            self._drafts,
        )
        passes = 0
        for _ in range(_VISITS):
            passes = sum(
                self._passes(
                    OutputSpec.parse(one.spec),
                    one.tokens,
                    learnt,
                )
                for one in documents
            )
        return passes

    def _passes(
        self, spec: OutputSpec, tokens: list[int], learnt: LearntDrafts | None = None
    ) -> int:
        """With all drafts that must follow, and what was learnt where there are
        none."""
        table = GrammarTable(self._vocabulary, 1.0, 1.0)
        table.add(
            0,
            "",
            spec,
            *self._forced.compiled(spec),
            (),
        )
        request = table.requests[0]
        at = 0
        passes = 0
        # behind the prompt one token is sampled, without drafts
        offered: tuple[int, ...] = ()
        while at < len(tokens):
            right = [
                one == same
                for one, same in zip(
                    offered,
                    tokens[at:],
                    strict=False,
                )
            ]
            new = tokens[at : at + 1 + [*right, False].index(False)]
            if learnt is not None:
                learnt.after(0, request, new)
            table.accept_more((0,), [[token] for token in new])
            at += len(new)
            passes += 1
            if learnt is None:
                offered = self._offers.after(request.matcher, self._drafts)
            else:
                offered = learnt.look(0, request).tokens
        return passes

    def _free(self, count: int) -> list[Document]:
        words = " ".join(
            text for _, file in self._files for text in _descriptions(file["schema"])
        )
        found = []
        size = 8 * _FREE_TOKENS  # characters: more than so many tokens have
        for number in range(count):
            at = number * size % max(1, len(words) - size)
            tokens = self._text(words[at : at + size])[: _FREE_TOKENS - 1]
            tokens.append(self._vocabulary.stop_token_ids[0])
            open_ = [False] * len(tokens)
            found.append(
                Document(
                    f"free {number}",
                    None,
                    tokens,
                    open_,
                    len(tokens),
                )
            )
        return found


def least_forwards(forced: Sequence[bool], drafts: int) -> int:
    """The forward passes of a document whose forced tokens are all drafts, so many at a
    time. The first one samples from the prompt; each of the others takes a run of
    drafts and samples the token behind it."""
    at = passes = 1
    while at < len(forced):
        run = 0
        while run < drafts and at + run < len(forced) and forced[at + run]:
            run += 1
        at = at + run + 1
        passes = passes + 1
    return passes


def passes_of(documents: Sequence[dict[str, Any]], drafts: int) -> dict[str, Any]:
    """How many tokens documents have, as a leg holds them, and their forward passes a
    token: the fewest, and those without what earlier answers taught."""
    tokens = sum(len(document["tokens"]) for document in documents)
    least = sum(least_forwards(document["forced"], drafts) for document in documents)
    alone = sum(document["passes"] for document in documents)
    return {
        "tokens": tokens,
        "bound": round(least / tokens, 4),
        "alone": round(alone / tokens, 4),
    }


class ForcedTokens:
    """Finds the tokens of a document whose every byte is forced: what came before
    allows no other byte there.

    Found from masks alone, one for each byte of the document: the judge of what a
    speculator offers must not share code with it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = GrammarCompiler(
            vocabulary, config=GuidedConfig(isolate_compiles=False, threads=1)
        )
        self._pieces = vocabulary.text_tokens
        self._stops = vocabulary.stop_token_ids
        self._bytes = TextTokens(vocabulary)
        # [257, words]: bit masks of the tokens that begin with a byte; the last row has
        # the stop tokens.
        begins = np.zeros((257, vocabulary.words * 32), dtype=bool)
        for token, piece in enumerate(self._pieces):
            if piece:
                begins[piece[0], token] = True
        begins[256, list(self._stops)] = True
        self._others = ~np.packbits(begins, axis=1, bitorder="little").view(np.int32)
        self._mask = np.zeros((1, vocabulary.words), np.int32)

    def __call__(self, spec: OutputSpec, tokens: Sequence[int]) -> list[bool] | None:
        """Of each token and of the stop token behind them; None where a fresh matcher
        refuses one."""
        if not all(map(self.start(spec).accept, [*tokens, self._stops[0]])):
            return None
        matcher = self.start(spec)
        batch = self._compiler.backend(self._compiler.compile(spec).backend).batch(
            [matcher]
        )
        found = []
        for token in tokens:
            sure = True
            for byte in self._pieces[token]:
                sure &= self._only(batch, byte)
                self._step(matcher, byte)
            found.append(sure)
        return [*found, self._only(batch, 256)]

    def compiled(self, spec: OutputSpec) -> tuple[Any, Backend]:
        """Its grammar, and what that belongs to."""
        grammar = self._compiler.compile(spec)
        return grammar, self._compiler.backend(grammar.backend)

    def start(self, spec: OutputSpec) -> Matcher:
        """A fresh matcher."""
        grammar, backend = self.compiled(spec)
        return backend.start(grammar, self._stops)

    def _only(self, batch: Any, row: int) -> bool:
        batch.fill(self._mask, [0])
        return not (self._mask[0] & self._others[row]).any()

    def _step(self, matcher: Matcher, byte: int) -> None:
        if not matcher.accept_text(bytes([byte])):
            raise SpecError(
                f"byte {byte:#04x} of a document is refused behind tokens that are not"
            )


def _descriptions(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            yield schema["description"]
        for value in schema.values():
            yield from _descriptions(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _descriptions(value)
