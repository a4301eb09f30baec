"""Random outputs of schemas whose items must be distinct, over vocabularies of three
kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
from stopping import Walker, special_vocabulary

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.table import GrammarTable

BYTES = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>"], [256]
)
# Tokens in which items end and others begin, or whole ones repeat.
CROSSING = (
    b'","|",|"]|0,|,0|0,0|"","",|1,1]|},{|"},{"|true,|[]|a","a|a","b","a"|{}|,{}|"a"|,"a"| ,| |\n|'
    b'], [|e}|":|,[]|10|,1|0.|"a","|,"|1,"|"],["|],["|"},{|":1},{"|],"|,[|,{|1,-|1],[|["|{"|'
    b'"a"],["|"b"],"|,1 |1,2,|true,f|","b|}]|":{|}},{"|]],[["'
).split(b"|")
VOCABULARIES = {
    "bytes": BYTES,
    "special": special_vocabulary(padded=True),
    "crossing": Vocabulary.from_tokens(
        [*BYTES.tokens[:256], *CROSSING, b"</s>"], [256 + len(CROSSING)]
    ),
}

UNIQUE = {"type": "array", "uniqueItems": True}
BOOLEAN = {"type": "boolean"}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "required": [*required]}
    return {**shape, "additionalProperties": False}


@functools.cache
def walker(name: str) -> tuple[GrammarCompiler, Walker]:
    compiler = GrammarCompiler(
        VOCABULARIES[name], config=GuidedConfig(threads=1, isolate_compiles=False)
    )
    return compiler, Walker(compiler)


def spec_of(
    schema: Any, *, strict: bool = False, whitespace: Any = "compact"
) -> OutputSpec:
    return OutputSpec.json_schema(schema, strict=strict, whitespace=whitespace)


class Members(list[tuple[str, Any]]):
    """An object's members, repeated ones too."""


def repeats(value: Any, schema: Any) -> list[Any]:
    items = (
        [key(item) for item in value]
        if not isinstance(value, Members)
        else [name for name, _ in value]
    )
    return [item for index, item in enumerate(items) if item in items[:index]]


def key(value: Any) -> Any:
    """Equal for equal values."""
    if isinstance(value, Members):
        return "object", frozenset(
            (name, key(member)) for name, member in dict(value).items()
        )
    if isinstance(value, list):
        return "array", tuple(map(key, value))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number", Decimal(repr(value))) if number else (type(value), value)


def wander(
    name: str, spec: OutputSpec, chance: Random, steps: int = 160
) -> bytes | None:
    """A random output of few letters, with spaces where any may be; None where it came
    to no end."""
    compiler, walks = walker(name)
    likely = b'",]}:abcdentrufls0123xy' + b" \n" * (spec.whitespace == "flexible")
    walk = walks.wander(
        compiler.compile(spec), chance, steps, finish=2 * steps, likely=likely
    )
    assert not walk.stuck, walk.text
    return walk.text if walk.accepted else None


def leaves_no_trace(
    backend: Any,
    grammar: Grammar,
    vocabulary: Vocabulary,
    chance: Random,
    *,
    steps: int,
    forth: float,
    most_back: int,
    ids_of: Callable[[list[int]], list[int]],
    choose: Callable[[list[int]], int],
) -> None:
    """After random moves, ways back and forks a mask is that of a matcher which came
    there directly.

    `ids_of` leaves out allowed tokens, and `choose` takes one of the others, in `forth`
    of all steps.
    """
    stops = vocabulary.stop_token_ids
    matcher = backend.start(grammar, stops)
    taken = []
    marked = None
    row = np.zeros((1, vocabulary.words), np.int32)
    direct = row.copy()
    for step in range(steps):
        backend.batch([matcher]).fill(row, [0])
        allowed = np.flatnonzero(
            np.unpackbits(row.view(np.uint8), bitorder="little")
        ).tolist()
        ids = ids_of([token for token in allowed if token not in stops])
        if marked is None or len(taken) - marked > most_back:
            matcher.mark()
            marked = len(taken)
        if ids and chance.random() < forth:
            token = choose(ids)
            assert matcher.accept(token)
            taken.append(token)
        else:
            matcher.rollback(len(taken) - marked)
            taken = taken[:marked]
            marked = None
        if step % 7 == 0:
            left = matcher
            matcher = left.fork()
            marked = None
            for token in ids[:1]:
                left.accept(token)
        fresh = backend.start(grammar, stops)
        assert all(fresh.accept(token) for token in taken)
        backend.batch([fresh]).fill(direct, [0])
        backend.batch([matcher]).fill(row, [0])
        assert np.array_equal(row, direct), b"".join(
            vocabulary.tokens[token] for token in taken
        )


def drafts_see_what_replays_see(
    backend: Any,
    grammar: Grammar,
    vocabulary: Vocabulary,
    history: bytes,
    rows_of_drafts: tuple[bytes, ...],
) -> None:
    """Masks behind drafts are those of a request that begins with these bytes."""
    table = GrammarTable(vocabulary)
    table.add(0, "r", grammar.spec, grammar, backend, [*history])
    for drafts in rows_of_drafts:
        rows = np.zeros((len(drafts) + 1, vocabulary.words), np.int32)
        fill_with_drafts(table, (0,), rows, [[byte] for byte in drafts])
        for place in range(len(drafts) + 1):
            fresh = GrammarTable(vocabulary)
            row = np.zeros((1, vocabulary.words), np.int32)
            fresh.add(
                0, "r", grammar.spec, grammar, backend, [*history, *drafts[:place]]
            )
            fresh.fill((0,), row)
            assert np.array_equal(rows[place], row[0]), drafts[:place]
        assert table.failures == []


def tokens_fit_bytes(
    compiler: GrammarCompiler, grammar: Grammar, chance: Random, steps: int
) -> None:
    """Along a random output, a token is allowed where its bytes are, one by one, and
    have a way on."""
    vocabulary = compiler.vocabulary
    backend = compiler.backend(grammar.backend)
    matcher = backend.start(grammar, vocabulary.stop_token_ids)
    long = [
        token
        for token, text in enumerate(vocabulary.tokens[: 256 + len(CROSSING)])
        if len(text) > 1
    ]
    taken: list[bytes] = []
    for _ in range(steps):
        row = matcher.row()
        allowed = {
            token
            for token in range(vocabulary.size)
            if row[token >> 5] >> (token & 31) & 1
        }
        wanted = {
            token for token in long if _fits(matcher.fork(), vocabulary.tokens[token])
        }
        differ = [vocabulary.tokens[token] for token in ({*long} & allowed) ^ wanted]
        assert differ == [], b"".join(taken)
        candidates = sorted(allowed - {*vocabulary.stop_token_ids})
        if not candidates:
            return
        likely = [
            token
            for token in candidates
            if set(vocabulary.tokens[token]) <= set(b'",]}[{:01ab')
        ]
        token = chance.choice(likely or candidates)
        taken.append(vocabulary.tokens[token])
        assert matcher.accept(token), b"".join(taken)


def _fits(matcher: Any, text: bytes) -> bool:
    for byte in text:
        if not matcher.row()[byte >> 5] >> (byte & 31) & 1:
            return False
        assert matcher.accept(byte)
    return bool(matcher.row().any())
