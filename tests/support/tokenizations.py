"""The ways in which a vocabulary's tokens spell one text: masks and matchers must treat
them all alike."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from random import Random

from guided_plugin.grammar.vocabulary import Vocabulary

__all__ = ["MERGED", "Tokenizations"]

MERGED = (
    *(
        b"}]",
        b"}}",
        b"]]",
        b"}]}",
        b'"}]',
        b'"]}',
        b'"}}',
        b'"]',
        b"},",
        b"],",
        b'"},',
        b"},{",
        b"],[",
    ),
    *(
        b'"},{"',
        b'},{"',
        b'":{"',
        b'":{',
        b'":["',
        b'":[',
        b'","',
        b'":"',
        b'[{"',
        b"[{",
        b"[[",
        b'{"',
    ),
    *(
        b"{}",
        b"[]",
        b"{},",
        b"[],",
        b'""',
        b'"",',
        b'"a":',
        b'"a","',
        b'"b":',
        b'"a"',
        b":1",
        b"1,",
        b"1}",
    ),
    *(
        b"1]",
        b"true}",
        b"true,",
        b"1,1",
        b', "',
        b": ",
        b" }",
        b"\n}",
        b' "',
        b"e1",
        b".0",
        b"0,",
    ),
    *(b"}</f>", b'"}</f>', b"]</f>", b"1</f>", b"</f>", b"<f>{", b'<f>{"', b"<f>["),
)
"""Tokens that end several things at once, or end one and begin another."""


class Tokenizations:
    """Spells texts in the tokens of a vocabulary that has each byte."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = {
            text: token for token, text in enumerate(vocabulary.text_tokens) if text
        }
        self._by_byte: dict[int, list[bytes]] = {}
        for text in sorted(self._tokens, key=len):
            self._by_byte.setdefault(text[0], []).append(text)

    def several(self, text: bytes, chance: Random) -> list[list[int]]:
        """Byte by byte, the longest tokens from the left, and two of which chance
        decides."""
        choices = (itemgetter(0), itemgetter(-1), chance.choice, chance.choice)
        return [self.spelt(text, choose) for choose in choices]

    def spelt(self, text: bytes, choose: Callable[[list[bytes]], bytes]) -> list[int]:
        """From left to right, each time one of the tokens that fit: these come shortest
        first."""
        found: list[int] = []
        at = 0
        while at < len(text):
            token = choose(
                [each for each in self._by_byte[text[at]] if text.startswith(each, at)]
            )
            found.append(self._tokens[token])
            at += len(token)
        return found
