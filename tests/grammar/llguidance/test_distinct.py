"""Items that must be distinct, also inside of tags: no mask leads to a repeated one, or
to where nothing is left.

Schemas, without `uniqueItems` itself, and texts, with single quotes, are in
distinct.json.
"""

import json
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from compilers import allowed, compiler_of, start, takes, tokens_of
from instances import laid_out
from oracle import oracle, read_exactly
from stopping import Walker, is_json, special_vocabulary
from tag_forms import json_of, tag
from vocabularies import BYTES

from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.spec import OutputSpec

TABLES = json.loads(Path(__file__).with_name("distinct.json").read_bytes())
# In which items, or the JSON of tags, end and others begin, or whole ones repeat.
CROSSING = rb"""
    "," ," "] 0 ,0 0,0 "","" ,1 1,1 ] }, {" },{" true ,true [] a"," a","b"," a" {} ,{} "a" ,"a"
    ], [ e} ": ,[] 10 ,1 0. "a"," ," 1, "],[" ],[" },{" ":1},{" ]," ,[ ,{ 1,- 1],[ [" {" "a"],["
    "b"], 2,true, f"," b", }] ":{ }},{ " ]],[[" >[" >["a"," >["a","a" >["a","a"]< >[1, >[1,1 "]<
    "]</ ]< ]</ a"]< 1]< ,1]< }]< 2}]< "b":1}]< }< ]}< }} >{"n":[1,1 ":[1,1, "]</u><u>["a","a
    ]</f><g>[1,1 "]</u> <u>[ <f> true}< "," "a", },{ ":true, >[{ >{" a"] 0, ,0]<
""".split()
SPACED = [b" ,", b" ", b"], [", b",1 ", b"1]</f>\n<f>[1,"]
VOCABULARY = special_vocabulary(padded=True, more=[*CROSSING, *SPACED])
COMPILER = compiler_of(VOCABULARY)
BACKEND = COMPILER.backend("llguidance")
WALKER = Walker(COMPILER)

UNIQUE = {"type": "array", "uniqueItems": True}
FIVE = TABLES["parts"]["five"]
STRINGS, FLAGS, NUMBERS, _, INTEGERS = (schema for schema, _ in FIVE.values())


def tags_of(parts):
    return [tag(begin, json_of(schema), end) for begin, (schema, end) in parts.items()]


def triggered(trigger, parts):
    return {"type": "triggered_tags", "triggers": [trigger], "tags": tags_of(parts)}


def one_begin(*schemas):
    """Which schema it is shows later, or never."""
    elements = [tag("<f>", json_of(schema), "</f>") for schema in schemas]
    return {"type": "or", "elements": elements}


SEPARATED = {"separator": "\n", "at_least_one": True, "tags": tags_of(FIVE)}
BEFORE = [
    tag("<think>", {"type": "any_text"}, "</think>"),
    {"type": "regex", "pattern": "[a-c]+"},
]
FORMS = {
    "triggered": triggered("<", FIVE),
    "calls": triggered("<c>", TABLES["parts"]["calls"]),
    "separated": {"type": "tags_with_separator", **SEPARATED},
    "text before": {
        "type": "sequence",
        "elements": [*BEFORE, *tags_of(TABLES["parts"]["two"])],
    },
    "control tokens": triggered("<tool_call>", TABLES["parts"]["control tokens"]),
    "one begin": one_begin(STRINGS, NUMBERS, FLAGS),
    "one begin, any integers": one_begin(INTEGERS, NUMBERS, FLAGS),
    "XML": tag("<f>", json_of(TABLES["elements"], style="qwen_xml"), "</f>"),
}
NAMED = {VOCABULARY.tokens.index(name) for name in (b"<tool_call>", b"</tool_call>")}
WALKED = [{**UNIQUE, **schema} for schema in TABLES["walked"]]
BEGUN = {
    "triggered": "<n>",
    "calls": next(iter(TABLES["parts"]["calls"])),
    "separated": "<u>",
    "text before": "<think>[1,1] <u>[</think>ab",
}
"""Forms of tags that are walked, each with how its outputs begin."""
CASES = [*WALKED, *BEGUN, "control tokens"]


def spec_of(case, *, strict=False, whitespace="compact", max_digits=20):
    """Of a schema, or of the name of a form of tags."""
    options = {"strict": strict, "whitespace": whitespace, "max_digits": max_digits}
    if isinstance(case, str):
        return OutputSpec.structural_tag({"format": FORMS[case]}, **options)
    return OutputSpec.json_schema(case, **options)


def any_text(text):
    return True


def texts_of(row):
    """Each text with whether it is right."""
    good = [(text.replace("'", '"'), True) for text in row["good"]]
    return good + [(text.replace("'", '"'), False) for text in row["bad"]]


def spaced(text, whitespace):
    """The same JSON in a layout: `flexible` has spaces and lines between all parts."""

    def part(found):
        return found[0] if found[0][0] == '"' else f" {found[0]}\n"

    if whitespace == "flexible":
        return re.sub(r'"(?:[^"\\]|\\.)*"|[],:[{}]', part, text).strip()
    return laid_out(text, whitespace)


def assert_judged(spec, texts, whole=is_json):
    """By masks along two tokenizations, and by a grammar as a helper sends it."""
    grammar = COMPILER.compile(spec)
    sent = BACKEND.load(BACKEND.prepare(spec))
    for text, right in texts:
        for way in (text, list(text.encode())):
            walk = WALKER.walk(grammar, way, whole)
            assert (walk.accepted, walk.early, walk.leaks) == (right, [], []), text
        assert takes(COMPILER, sent, text) == right, text


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
@pytest.mark.parametrize("row", TABLES["texts"])
def test_texts(row, whitespace):
    texts = [(spaced(text, whitespace), right) for text, right in texts_of(row)]
    spec = spec_of({**UNIQUE, **row["schema"]}, whitespace=whitespace)
    assert_judged(spec, texts)


@pytest.mark.parametrize("name", TABLES["tags"])
def test_texts_with_tags(name):
    texts = texts_of(TABLES["tags"][name])
    assert_judged(spec_of(name, strict=name == "XML"), texts, any_text)


@pytest.mark.parametrize(("last", "right"), [("b", True), ("a", False)])
def test_control_tokens_begin_and_end_json(last, right):
    begin, end = sorted(NAMED)
    inner = f'["a","{last}"]'.encode()
    tokens = [*b"so ", begin, *b'["a"]', end, begin, *inner, end]
    grammar = COMPILER.compile(spec_of("control tokens"))
    assert WALKER.walk(grammar, tokens, any_text, NAMED).accepted == right


def values_in(text, parts):
    """The JSON in an output of tags, each with its schema. A begin in a string is
    none."""
    begins = re.compile("|".join(map(re.escape, parts)))
    text = text.rpartition("</think>")[2]
    decoder = json.JSONDecoder()
    at = 0
    while found := begins.search(text, at):
        schema, end = parts[found[0]]
        _, at = decoder.raw_decode(text, found.end())
        assert text.startswith(end, at), text
        yield text[found.end() : at], schema


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
@pytest.mark.parametrize("case", [*WALKED, *BEGUN])
def test_no_walk_repeats_a_value_or_ends_without_a_token(case, whitespace):
    tagged = isinstance(case, str)
    likely = b'",]}:abcdentrufls0123xy' + b" \n" * (whitespace == "flexible")
    likely += b"<>/nofu" * tagged
    ended = 0
    for seed in range(4):
        strict = bool(seed % 2)
        spec = spec_of(case, strict=strict, whitespace=whitespace, max_digits=seed + 2)
        walk = WALKER.wander(
            COMPILER.compile(spec),
            Random(seed),
            steps=120,
            whole=any_text if tagged else is_json,
            begin=BEGUN[case] if tagged else "",
            finish=240,
            likely=likely,
        )
        assert (walk.stuck, walk.early, walk.leaks) == (False, [], []), walk.text
        if not walk.accepted:
            continue
        ended += 1
        text = walk.text.decode()
        found = [(text, case)]
        if tagged:
            found = values_in(text, TABLES["parts"].get(case, FIVE))
        for part, schema in found:
            value = read_exactly(part)
            assert oracle(schema)(value), text
    assert ended or whitespace == "flexible"


LONG = [
    token
    for token, text in enumerate(VOCABULARY.tokens)
    if len(text) > 1 and token not in VOCABULARY.special_ids
]
LIKELY = {
    token
    for token, text in enumerate(VOCABULARY.tokens)
    if set(text) <= set(b'",]}[{:01abn<>/uf') or token in NAMED
}


def next_token(matcher, chance):
    """One that its mask allows, more often one that ends something; None at the
    end."""
    shown = {*allowed(matcher)} - {*VOCABULARY.stop_token_ids}
    candidates = sorted(shown & LIKELY or shown)
    return chance.choice(candidates) if candidates else None


@pytest.mark.parametrize("whitespace", ["spaced", "flexible"])
@pytest.mark.parametrize("case", CASES)
def test_going_back_and_forking_leave_no_trace(case, whitespace):
    chance = Random(5)
    grammar = COMPILER.compile(spec_of(case, whitespace=whitespace))
    matcher = start(COMPILER, grammar)
    taken = []
    for _ in range(30):
        before = matcher.fork()
        ahead = []
        for _ in range(chance.randint(1, 6)):
            token = next_token(matcher, chance)
            if token is not None:
                assert matcher.accept(token)
                ahead.append(token)
        if token is None or chance.random() < 0.3:
            matcher = before
        else:
            taken += ahead
        left = matcher
        matcher = left.fork()
        token = next_token(left, chance)
        if token is not None:
            left.accept(token)
        direct = start(COMPILER, grammar)
        assert all(map(direct.accept, taken))
        assert np.array_equal(matcher.row(), direct.row()), taken


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_bytes_allow_the_same(case):
    """A token is allowed where its bytes are, one by one, and have a way on."""
    for seed, whitespace in enumerate(("compact", "flexible")):
        spec = spec_of(case, strict=True, whitespace=whitespace)
        matcher = start(COMPILER, COMPILER.compile(spec))
        chance = Random(seed)
        for _ in range(12):
            shown = allowed(matcher)
            for long in LONG:
                fits = bytewise(matcher.fork(), VOCABULARY.tokens[long])
                assert (long in shown) == fits, VOCABULARY.tokens[long]
            token = next_token(matcher, chance)
            if token is None:
                break
            assert matcher.accept(token)


def bytewise(matcher, text):
    for byte in text:
        if not matcher.row()[byte >> 5] >> (byte & 31) & 1:
            return False
        assert matcher.accept(byte)
    return bool(matcher.row().any())


def test_many_rows_are_checked_in_threads():
    compiler = compiler_of(BYTES, threads=2)
    grammars = [
        compiler.compile(spec_of({**STRINGS, "uniqueItems": checked}))
        for checked in (True, False)
    ]
    matchers = [start(compiler, grammars[place % 2]) for place in range(40)]
    batch = compiler.backend("llguidance").batch(matchers)
    for byte in b'["a","a':
        assert all(batch.accept([byte] * 40))
    rows = np.zeros((40, BYTES.words), np.int32)
    batch.fill(rows, list(range(40)))
    quotes = [ord('"') in shown for shown in tokens_of(rows)]
    assert quotes == [False, True] * 20
    assert batch.accept([ord('"')] * 40) == quotes


@pytest.mark.parametrize("row", TABLES["counted"])
def test_more_items_than_values_are_refused_at_admission(row):
    array = {**UNIQUE, "items": row["items"]}
    COMPILER.compile(spec_of({**array, "minItems": row["enough"]}))
    with pytest.raises(GrammarError):
        COMPILER.compile(spec_of({**array, "minItems": row["too many"]}))


@pytest.mark.parametrize(("schema", "where", "says"), TABLES["refused"])
def test_what_is_not_checked_is_refused_with_its_place(schema, where, says):
    with pytest.raises(UnsupportedSpecError) as caught:
        COMPILER.compile(spec_of({**UNIQUE, **schema}, strict=True))
    assert caught.value.where == where
    assert says in caught.value.what
