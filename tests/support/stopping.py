"""Walks a text through a matcher and tells at which positions the special tokens are
wrong.

Stop tokens must be allowed exactly where the output is complete, all other special
tokens only where the grammar names them, and ids behind the vocabulary never.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
from vocabularies import MULTI_BYTE_TOKENS

from benchmarks.samples import TextTokens
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary

_STOPS = (b"</s>", b"<|im_end|>")
AWKWARD_SPECIALS = (*_STOPS, b"<s>", b"[INST]", b"[/INST]", b"[1", b"[", b"<|im", b'"')
AWKWARD_SPECIALS += (b"{}", b"1", b"", b"<tool_call>", b"</tool_call>")
"""Names that begin like JSON, like another's name, like an id in brackets, or are
missing."""


def special_vocabulary(*, padded, specials_first=False, more=()):
    """Bytes, a few tokens of several bytes, and special tokens of awkward names; two of
    them stop.

    `padded`: the size is no multiple of 32, so that the last word of a mask has bits
    that no token owns. `more`: further texts.
    """
    texts = [bytes([byte]) for byte in range(256)]
    texts += [*MULTI_BYTE_TOKENS, b'":"', b'","', b"]}", b"123"]
    texts += [text for text in more if text not in texts]
    specials = list(AWKWARD_SPECIALS)
    tokens = specials + texts if specials_first else texts + specials
    start = 0 if specials_first else len(texts)
    # Words without a meaning fill it up: they are text that no test needs.
    wanted = 5 if padded else 0
    tokens += [b"~filler%d" % i for i in range((wanted - len(tokens)) % 32)]
    stops = [tokens.index(name, start) for name in _STOPS]
    return Vocabulary.from_tokens(
        tokens,
        stops,
        range(start, start + len(specials)),
    )


def is_json(text):
    """Whether a text is a whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass
class Walk:
    """What happened to one text."""

    accepted: bool = False
    """Whether every token was allowed and the output may stop after the last one."""
    early: list[str] = field(default_factory=list)
    """Positions where stop tokens and completeness disagree."""
    leaks: list[str] = field(default_factory=list)
    """Positions where other special tokens, or ids that no token owns, are allowed."""
    text: bytes = b""
    """What was accepted."""
    stuck: bool = False
    """Whether it ended where no token is allowed."""
    faults: list[str] = field(default_factory=list)
    """Tokens that a mask allowed and the matcher refused."""
    limited: bool = False
    """Whether it ended at a limit of the backend, which its error says."""

    def fail(self, error):
        """It ended with an error of its request."""
        self.stuck = "allows no token" in error or "breaks the grammar" in error
        # time, on a busy machine
        self.limited = "exceeded a limit" in error or "row_ms" in error


class Walker:
    """Walks texts through grammars of one compiler."""

    def __init__(self, compiler):
        self._compiler = compiler
        self._vocabulary = compiler.vocabulary
        self._stops = self._vocabulary.stop_token_ids
        self._tokens = TextTokens(self._vocabulary)
        names = self._vocabulary.tokens
        self._long = {token for token, name in enumerate(names) if len(name) > 1}
        self._long -= self._vocabulary.special_ids

    def walk(self, grammar, text, whole=is_json, named=()):
        """One text, or its tokens, checked before each token and after the last.

        `whole`: whether a text may be a whole output. `named`: special tokens that the
        grammar names.
        """
        tokens = self._tokens(text) if isinstance(text, str) else text
        return self.walk_all(
            grammar,
            [tokens],
            whole,
            named,
        )[0]

    def walk_all(self, grammar, ways, whole=is_json, named=()):
        """Several rows of tokens next to each other, each checked as `walk` checks
        one."""

        def chooser(tokens):
            left = iter(tokens)
            return lambda mask: next(left, None)

        return self._walk(
            grammar,
            [chooser(way) for way in ways],
            whole,
            named,
        )

    def wander(
        self,
        grammar,
        chance,
        steps,
        whole=is_json,
        named=(),
        *,
        begin="",
        finish=0,
        likely=b"",
        merged=0,
    ):
        """Tokens at random, of those that the masks allow; those that may end something
        come more often.

        `begin`: a text to start with. `finish`: so many steps more to end the output,
        if it may end. `likely`: tokens of these bytes alone come before others.
        `merged`: how often several bytes do.
        """
        first = self._tokens(begin)
        ending = self._made_of(b'"]}')
        plain = self._made_of(likely)
        count = 0

        def choose(mask):
            nonlocal count
            count += 1
            allowed = _tokens_in(mask)
            candidates = sorted(allowed - self._vocabulary.special_ids)
            if count <= len(first):
                return first[count - 1]
            late = count - len(first) - steps
            may_end = not allowed.isdisjoint(self._stops)
            if not candidates or late > finish or (late > 0 and may_end):
                return None
            kinds = ((self._long, merged), (ending, 0.9 if late > 0 else 0.4))
            for some, share in (*kinds, (plain, 0.95)):
                if chance.random() < share and not allowed.isdisjoint(some):
                    candidates = sorted(allowed & some)
                    break
            return chance.choice(candidates)

        return self._walk(
            grammar,
            [choose],
            whole,
            named,
        )[0]

    def output(self, spec, chance):
        """A random output of a spec that comes to its end."""
        walk = self.wander(
            self._compiler.compile(spec),
            chance,
            25,
            finish=4_000,
        )
        assert walk.accepted, walk
        return walk.text.decode()

    def _made_of(self, some):
        """The tokens that have no bytes but these."""
        names = enumerate(self._vocabulary.tokens)
        return {token for token, name in names if name and set(name) <= set(some)}

    def _walk(self, grammar, choosers, whole, named):
        """Walks next to each other, each of which ends where its chooser says None, or
        a token that is not allowed."""
        table = GrammarTable(self._vocabulary)
        backend = self._compiler.backend(grammar.backend)
        for slot in range(len(choosers)):
            table.add(
                slot,
                f"walk {slot}",
                grammar.spec,
                grammar,
                backend,
            )
        walks = [Walk() for _ in choosers]
        masks = np.zeros((len(choosers), self._vocabulary.words), np.int32)
        unnamed = self._unnamed(named)
        going = list(range(len(choosers)))
        while going:
            table.fill(tuple(going), masks)
            self._note(table, walks)
            tokens = {}
            for slot, mask in zip(
                going,
                masks,
                strict=False,
            ):
                walk = walks[slot]
                if table.requests[slot].error is not None:
                    continue
                complete = table.requests[slot].matcher.complete
                stops = [_allows(mask, token) for token in self._stops]
                if stops != [complete] * len(stops):
                    walk.early.append(f"after {walk.text!r}: complete {complete}")
                elif complete and not whole(walk.text):
                    walk.early.append(f"after {walk.text!r}: not a whole output")
                if (mask & unnamed).any():
                    leaks = sorted(_tokens_in(mask & unnamed))
                    walk.leaks.append(f"after {walk.text!r}: {leaks}")
                token = choosers[slot](mask)
                if token is None:
                    walk.accepted = any(stops)
                elif _allows(mask, token):
                    tokens[slot] = token
            table.accept(tuple(tokens), list(tokens.values()))
            for slot, error in table.failures:
                text = walks[slot].text
                walks[slot].faults.append(f"{tokens.pop(slot)} after {text!r}: {error}")
            self._note(table, walks)
            for slot, token in tokens.items():
                walks[slot].text += self._vocabulary.tokens[token]
            going = list(tokens)
        return walks

    def _note(self, table, walks):
        for slot, error in table.failures:
            walks[slot].fail(str(error))
        table.failures.clear()

    def _unnamed(self, named):
        """A mask of the special tokens that never come, and of ids behind all."""
        bits = np.zeros(32 * self._vocabulary.words, np.uint8)
        bits[list(self._vocabulary.special_ids - {*self._stops, *named})] = 1
        bits[self._vocabulary.size :] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


def _tokens_in(mask):
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def _allows(mask, token):
    return bool(mask[token >> 5] >> (token & 31) & 1)
