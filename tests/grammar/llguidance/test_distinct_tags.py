"""Items and names that must be distinct, inside structural tags: as outside, and in
each JSON by itself."""

from __future__ import annotations

import functools
from random import Random

import jsonschema
import numpy as np
import pytest
from distinct_walks import UNIQUE, Members, key, leaves_no_trace
from stopping import Walker
from tag_walks import (
    FLAGS,
    FORMS,
    FREE,
    NAMES,
    NUMBERS,
    STRINGS,
    VOCABULARY,
    json_of,
    spec_of,
    tag,
    texts_of,
)

from guided_plugin import GuidedConfig
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.plugins import Plugins

STOPS = VOCABULARY.stop_token_ids
SPECIAL = VOCABULARY.special_ids


@functools.cache
def compiler():
    config = GuidedConfig(threads=1, isolate_compiles=False, backend="llguidance")
    return GrammarCompiler(
        VOCABULARY, config=config, plugins=Plugins(entry_points=False)
    )


@functools.cache
def compiled(name, *, strict=False, whitespace="compact"):
    return compiler().compile(
        spec_of(FORMS[name].form, strict=strict, whitespace=whitespace)
    )


def started(grammar):
    backend = compiler().backend(grammar.backend)
    matcher = backend.start(grammar, STOPS)
    return matcher, backend.batch([matcher])


def accepted(form, text, **options):
    grammar = compiler().compile(spec_of(form, **options))
    walk = Walker(compiler()).walk(
        grammar, text, whole=lambda _: True, named=SPECIAL - set(STOPS)
    )
    assert walk.early == [] == walk.leaks
    return walk.accepted


def allowed_in(row):
    return set(
        np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    )


def plain(value):
    if isinstance(value, Members):
        return {name: plain(member) for name, member in value}
    return list(map(plain, value)) if isinstance(value, list) else value


def repeated(value):
    """Names that an object has twice."""
    if isinstance(value, Members):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(
            repeated(member) for _, member in value
        )
    return isinstance(value, list) and any(map(repeated, value))


LETTERS = set(b'abntrue012",:[]{}<>/sfxo\n ')


def wander(name, chance, steps=120, **options):
    """A random output, which ends once few tokens are left to it, and the tokens of
    it."""
    grammar = compiled(name, **options)
    _, batch = started(grammar)
    row = np.zeros((1, VOCABULARY.words), np.int32)
    tokens = []
    planned = []
    for step in range(6 * steps):
        batch.fill(row, [0])
        allowed = allowed_in(row)
        assert allowed, b"".join(VOCABULARY.tokens[token] for token in tokens)
        ids = sorted(allowed - set(STOPS))
        if not ids or (
            allowed & set(STOPS) and (step > steps or chance.random() < 0.02)
        ):
            return tokens
        token = (
            planned.pop()
            if planned and planned[-1] in allowed
            else chosen(ids, chance, step > steps)
        )
        if not planned and chance.random() < 0.2:
            form = FORMS[name]
            begins = [begin for begin, _, _ in form.parts]
            planned = [*chance.choice([*begins, form.head]).encode()][::-1]
        assert batch.accept([token]) == [True], VOCABULARY.tokens[token]
        tokens.append(token)
    return None


def chosen(ids, chance, late):
    """Control tokens, and what ends or crosses something, come more often than
    others."""
    control = [token for token in ids if token in SPECIAL]
    if control and chance.random() < 0.3:
        return chance.choice(control)
    likely = [
        i for i in ids if i not in SPECIAL and LETTERS.issuperset(VOCABULARY.tokens[i])
    ] or ids
    long = [token for token in likely if len(VOCABULARY.tokens[token]) > 1]
    ending = [token for token in ids if set(VOCABULARY.tokens[token]) <= set(b']}"')]
    quick = ending if late else long
    return chance.choice(quick if quick and chance.random() < 0.5 else likely)


@pytest.mark.parametrize(
    "options",
    [{}, {"strict": True}, {"whitespace": "spaced"}, {"whitespace": "flexible"}],
)
@pytest.mark.parametrize("name", FORMS)
def test_each_json_of_a_random_output_keeps_its_schema(name, options):
    seen = 0
    for seed in range(12):
        tokens = wander(name, Random(seed), **options)
        if tokens is None:
            continue
        for value, schema in texts_of(FORMS[name], tokens, Members):
            jsonschema.validate(plain(value), schema)
            assert not repeated(value) or "minProperties" not in schema, value
            if schema.get("uniqueItems"):
                keys = list(map(key, value))
                assert not any(item in keys[:at] for at, item in enumerate(keys)), value
            seen += 1
    assert seen >= 6


GOOD = {
    "tag": ['<s>["a","b"]</s>', "<s>[]</s>"],
    "triggered": [
        'a [ b: <s>["a"]</s> and <s>["a"]</s> <n>{"n":[1,2]}</n>.',
        "<x>[1,1]</x><x>[1,1]</x>", '<o>{"a":true,"b":true}</o>', '"a","a" [1,1',
        '<s>["<f>[1,1","<f>[1,1]"]</s><f>[]</f>', '<f>[{"a":true,"b":1},{"a":true,"b":2}]</f>',
    ],
    "calls": [
        '<c>{"name":"a","arguments":{"n":[1,2]}}</c><c>{"name":"a","arguments":{"n":[1,2]}}</c>',
        '<c>{"name":"ab","arguments":{"n":true,"m":true}}</c> <c>{"name":"b","arguments":[1,1]}</c>',
    ],
    "separated": ['<s>["a"]</s>\n<s>["a"]</s>\n<x>[2,2]</x>'],
    "sequence": ['<s>["a"]</s><f>[{"a":true,"b":1}]</f>'],
    "text before": ['<think>[1,1] <s>["a","a"]</think>aa<s>["a"]</s><f>[]</f>'],
}  # fmt: skip
BAD = {
    "tag": ['<s>["a","a"]</s>', '<s>["a","b","a"]</s>'],
    "triggered": [
        'a <s>["a"]</s> and <s>["b","b"]</s>', '<n>{"n":[1,1]}</n>', '<o>{"a":true,"a":true}</o>',
        '<x>[1,1]</x><n>{"n":[1,1]}</n>', '<f>[{"a":true,"b":1},{"b":1,"a":true}]</f>',
        '<s>["<f>","<f>"]</s>',
    ],
    "calls": [
        '<c>{"name":"a","arguments":{"n":[1,2]}}</c><c>{"name":"a","arguments":{"n":[1,1]}}</c>',
        '<c>{"name":"ab","arguments":{"n":true,"n":true}}</c>',
    ],
    "separated": ['<s>["a"]</s>\n<s>["a","a"]</s>'],
    "sequence": ['<s>["a"]</s><f>[{"a":true,"b":1},{"a":true,"b":1}]</f>'],
    "text before": ['<think>x</think>a<s>["a","a"]</s><f>[]</f>'],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_texts(name):
    form = FORMS[name].form
    for text in GOOD[name]:
        assert accepted(form, text), text
    for text in BAD[name]:
        assert not accepted(form, text), text


@pytest.mark.parametrize("name", FORMS)
def test_tokens_and_bytes_allow_the_same(name):
    """A token is allowed where its bytes are, and where what is behind them has a way
    on."""
    for seed in range(2):
        tokens = wander(name, Random(100 + seed), steps=40)
        if tokens is None:
            continue
        matcher, batch = started(compiled(name))
        row = np.zeros((1, VOCABULARY.words), np.int32)
        for token in tokens[:40]:
            batch.fill(row, [0])
            allowed = allowed_in(row)
            for long in range(256, 256 + len(VOCABULARY.tokens) - 259):
                text = VOCABULARY.tokens[long]
                follows = text[0] in allowed and bytewise(matcher.fork(), text)
                assert (long in allowed) == follows, (seed, text)
            assert batch.accept([token]) == [True]


def bytewise(matcher, text):
    batch = compiler().backend("llguidance").batch([matcher])
    row = np.zeros((1, VOCABULARY.words), np.int32)
    for byte in text:
        batch.fill(row, [0])
        if byte not in allowed_in(row):
            return False
        assert batch.accept([byte]) == [True]
    batch.fill(row, [0])
    return bool(row.any())


@pytest.mark.parametrize("name", FORMS)
def test_going_back_and_forking_leave_no_trace(name):
    chance = Random(7)
    grammar = compiled(name)

    def choose(ids):
        likely = [
            i for i in ids if i in SPECIAL or LETTERS.issuperset(VOCABULARY.tokens[i])
        ]
        long = [token for token in likely if len(VOCABULARY.tokens[token]) > 1]
        return chance.choice(long if long and chance.random() < 0.6 else likely or ids)

    leaves_no_trace(
        compiler().backend(grammar.backend),
        grammar,
        VOCABULARY,
        chance,
        steps=150,
        forth=0.85,
        most_back=12,
        ids_of=lambda allowed: allowed,
        choose=choose,
    )


@pytest.mark.parametrize("first", [STRINGS, FREE])
def test_schemas_behind_one_begin_all_count(first):
    """Which schema it is shows later, or never: as with `anyOf` outside."""
    form = {
        "type": "or",
        "elements": [
            tag("<f>", json_of(each), "</f>") for each in (first, NUMBERS, FLAGS)
        ],
    }
    assert accepted(form, '<f>{"n":[1,2]}</f>')
    assert not accepted(form, '<f>{"n":[1,1]}</f>')
    assert accepted(form, '<f>[{"a":true,"b":1},{"a":true,"b":2}]</f>')
    assert not accepted(form, '<f>[{"a":true,"b":1},{"a":true,"b":1}]</f>')


def test_values_of_xml_elements():
    schema = {
        "type": "object",
        "properties": {
            "t": {"type": "string"},
            "n": {**UNIQUE, "items": {"type": "integer"}},
            "o": NAMES,
        },
        "required": ["t", "n"],
        "additionalProperties": False,
    }
    form = tag("<f>", json_of(schema, style="qwen_xml"), "</f>")
    text = (
        '<f><parameter=t>[1,1] ["a","a"]</parameter>\n<parameter=n>{}</parameter></f>'
    )
    assert accepted(form, text.format("[1,2]"), strict=True)
    assert not accepted(form, text.format("[1,1]"), strict=True)


def test_control_tokens_begin_and_end_json():
    grammar = compiled("control tokens")
    call, end = (
        VOCABULARY.tokens.index(name) for name in (b"<tool_call>", b"</tool_call>")
    )
    for inner, fine in ((b'["a","b"]', True), (b'["a","a"]', False), (b'["a"]', True)):
        matcher, _ = started(grammar)
        tokens = [*b"so ", call, *b'["a"]', end, call, *inner, end]
        assert all(matcher.accept(token) for token in tokens) == fine


def test_a_prepared_tag_is_checked_where_it_is_loaded():
    backend = compiler().backend("llguidance")
    prepared = backend.prepare(spec_of(FORMS["triggered"].form))
    matcher = backend.start(backend.load(prepared), STOPS)
    assert matcher.accept_text(b'x <s>["a","a')
    assert not matcher.accept_text(b'"')
