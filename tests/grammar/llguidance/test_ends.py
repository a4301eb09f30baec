"""What rules tell of ends, judged by jsonschema and by the texts of `re`."""

import itertools
import json
import re
import tracemalloc

import pytest
from oracle import oracle

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.llguidance.lark import schema_to_lark
from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.grammar.llguidance.lark.ends import Shortest, forced_run, nesting
from guided_plugin.grammar.llguidance.lark.expected import Follower
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    LarkGrammar,
    Reference,
    Repeated,
    Rule,
    RuleSet,
    Text,
)
from guided_plugin.grammar.llguidance.lark.strings import known_of, known_of_string
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.languages import whole

NODE = {
    "type": "object",
    "properties": {
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        "value": {"type": "string", "minLength": 3},
        "more": {"const": "x" * 40},
    },
    "required": ["next", "value"],
}
NODE_TEXT = b'{"next":null,"value":"aaa"}'
SCHEMAS = [
    NODE,
    {"type": "array", "items": NODE, "minItems": 3},
    {
        "type": "array",
        "items": {"enum": ["a", "b", "cc"]},
        "uniqueItems": True,
        "minItems": 2,
    },
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    {
        "type": "object",
        "properties": {"a": {"minimum": 100, "type": "integer"}},
        "required": ["a", "b"],
    },
    {"type": "string", "pattern": "^[a-z]{3}-[0-9]+$"},
    {"type": "string", "pattern": "T[0-9]{2}", "minLength": 7},
    {"type": "string", "format": "date-time"},
    {"anyOf": [{"const": "a longer text"}, {"type": "array", "minItems": 9}]},
    {"not": {"type": ["string", "number", "null", "boolean"]}},
]


def _rules(schema, *, strict):
    spec = OutputSpec.json_schema(schema, strict=strict).settled(GuidedConfig())
    found = schema_to_lark(spec).rules
    assert found is not None
    return found


def _shortest(schema, *, strict):
    return Shortest(_rules(schema, strict=strict))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_shortest_outputs_are_valid_and_short(schema, strict):
    text = _shortest(schema, strict=strict).whole
    assert text is not None
    assert oracle(schema)(json.loads(text))
    assert len(text) <= 100


def test_rules_may_come_in_any_order():
    long = Text("a longer text")
    rules = {
        "one": Rule([Alternative((long,)), Alternative((Reference("late"),))]),
        "two": Rule([Alternative((Reference("one"), Reference("one")))]),
        "more": Rule([Alternative((Repeated((Reference("late"),), 0, None),))]),
        "late": Rule([Alternative((Text("x"),))]),
    }
    for names in itertools.permutations(rules):
        ordered = {name: rules[name] for name in names}
        known = Shortest(RuleSet(Reference("two"), ordered, (), frozenset(), False))
        assert known.whole == b"xx"
        assert known.choices == [long.text.encode(), b"x"]


@pytest.mark.parametrize(
    "demands",
    [
        {"minimum": 3},
        {"minimum": 97},
        {"exclusiveMinimum": 99},
        {"exclusiveMinimum": 9.5, "multipleOf": 4},
        {"maximum": -20},
        {"exclusiveMaximum": 0},
        {"maximum": -9.5, "minimum": -11},
        {"minimum": 0.25, "maximum": 0.75},
        {"minimum": -7, "not": {"minimum": 0}},
        {"minimum": 9, "not": {"enum": [9, 10]}},
        {"multipleOf": 12, "exclusiveMinimum": 0},
        {"enum": [200, 17.5, 1000]},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_no_number_of_a_range_is_shorter(kind, demands):
    schema = {"type": kind} | demands
    judge = oracle(schema)
    valid = []
    for size in range(1, 5):
        for text in map("".join, itertools.product("-.0123456789", repeat=size)):
            if re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", text):
                valid += [text] * judge(json.loads(text))
        if valid:
            break
    if valid:
        text = _shortest(schema, strict=True).whole
        assert text is not None
        assert judge(json.loads(text))
        assert len(text) == len(valid[0])


@pytest.mark.parametrize("strict", [True, False])
def test_choices_hold_the_longest_text_that_one_may_add(strict):
    longest = _shortest(NODE, strict=strict).choices[0]
    assert b'"more":"' + b"x" * 40 in longest
    assert len(longest) < 80


PAIR = {
    "type": "object",
    "properties": {"a": {"type": "array", "minItems": 1}, "bcd": {"const": 7}},
    "required": ["bcd"],
}
PAIR["properties"]["a"]["items"] = {"enum": ["x", "yyyy"]}


def test_the_longest_ending_is_behind_the_choices_that_need_most():
    choice = {"anyOf": [PAIR, {"const": 1}]}
    known = Shortest(_rules(choice, strict=True))
    assert known.longest == b'{"a":["x"],"bcd":7}'
    assert Shortest(_rules(NODE, strict=True)).longest is None


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("a{5}", 5),
        ("a|\u6f22{2}", 6),
        ("a|b{50}", 50),
        ("ab(c|d{3}e)*f", 5),
        ("(ab){3}", 6),
        ("[^a]", 1),
        ("", 0),
    ],
)
def test_reach_bounds_what_a_text_may_still_need(pattern, most):
    known = known_of(whole(pattern))
    assert known.most == most
    assert all(re.fullmatch(pattern, text) for text in known.texts)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("c{260}", 260),
        ("[a-z]{300}[0-9]{3,}", 303),
        ("((ab){20}){30}x?", 1200),
        ("(bcd|a){900}(xyz|vw)", 902),
    ],
)
def test_long_texts_of_counted_parts_are_known(pattern, size):
    texts = known_of(whole(pattern)).texts
    assert len(texts[0]) == size
    assert all(re.fullmatch(pattern, text) for text in texts)


@pytest.mark.parametrize("times", [10, 600])
def test_no_pattern_fills_the_memory_with_its_texts(times):
    parts = "(a{9000}|b{9000}|c{9000})" * times
    tracemalloc.start()
    assert len(known_of(whole(parts)).texts[0]) == 8_000
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]+@[a-z]+\\.com$",
        "[0-9]{4}T(x|yy)Z",
        "^[0-9]+$",
        "^([a-z][0-9])+$",
        "b{3}",
        "^a|b$",
        "^[a-z]+@x$",
        "^(ab|c*d)$",
        "[0-9]{2}T",
        "^a{2,}b?$",
    ],
)
@pytest.mark.parametrize("least", [0, 2, 9])
def test_texts_are_as_long_as_is_demanded(pattern, least):
    known = known_of_string(String(least, patterns=frozenset({pattern})))
    assert known.texts
    for text in map(json.loads, known.texts):
        assert re.search(pattern, text)
        assert len(text) >= least


@pytest.mark.parametrize(
    ("pattern", "marks"),
    [
        ("[^Q]*Q", "Q"),
        ("[^,;]+", ",;"),
        ("[a-z]+", ""),
        (".*", ""),
        ("[^\u6f22]", "\x80"),
    ],
)
def test_marks_are_what_a_free_text_leaves_out(pattern, marks):
    assert known_of(whole(pattern)).marks == set(marks)


def test_long_runs_of_forced_text_are_seen_also_across_values():
    names = [f"name{i:02}" for i in range(40)]
    consts = {name: {"const": "y" * 20} for name in names}
    chain = {"type": "object", "properties": consts, "required": names}
    assert forced_run(_rules(chain, strict=True)) > 40 * 20
    free = {name: {"type": "string"} for name in names}
    chosen = {"type": "object", "properties": free, "required": names}
    assert forced_run(_rules(chosen, strict=True)) < 40


def test_rules_nest_as_deep_as_objects_do():
    schema = {"type": "string"}
    for _ in range(30):
        schema = {
            "type": "object",
            "properties": {"a": schema},
            "required": ["a"],
            "additionalProperties": False,
        }
    assert 30 <= nesting(_rules(schema, strict=True)) <= 130


def test_rules_reach_other_processes():
    made = schema_to_lark(OutputSpec.json_schema(NODE))
    packed = made.packed(closes=True)
    sent = LarkGrammar.unpacked(packed).sent
    assert sent is not None
    assert made.rules is not None
    assert RuleSet.unpacked(sent).packed() == made.rules.packed() == sent
    assert LarkGrammar.unpacked(made.packed(closes=False)).sent is None


_KINDS = {"a": "object", "b": "array", "c": "string"}
UNION = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "of": {"type": kind_of}},
            "required": ["kind", "of", "last"],
        }
        for kind, kind_of in _KINDS.items()
    ]
}

LISTED = {
    "type": "object",
    "properties": {
        "a": {"enum": [*"abcdefghijklmnopqrst", "a value of 30"]},
        "b": {"type": "integer"},
    },
    "required": ["a", "b"],
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("schema", "begun", "ends"),
    [
        (NODE, b'{"next":null,"va', b'lue":"aaa"}'),
        (NODE, b'{"next":{"next":null,"value":"xy', b'a"},"value":"aaa"}'),
        (UNION, b'{"kind":"b","of":', b'[],"last":0}'),
        (UNION, b'{"kind":"b","of":[{"k":[1,tr', b'ue]}],"last":0}'),
        (UNION, b'{"kind":"c","of":"\\"]}', b'","last":0}'),
        (SCHEMAS[1], b"[", NODE_TEXT + b"," + NODE_TEXT + b"," + NODE_TEXT + b"]"),
        (SCHEMAS[9], b"[ 1 , -", b"0]"),
        (LISTED, b'{"a":"a value ', b'of 30","b":0}'),
        (LISTED, b'{"a":"a value of 30","b":', b"0}"),
    ],
)
def test_an_ending_is_what_is_still_expected(schema, strict, begun, ends):
    sent = RuleSet.unpacked(_rules(schema, strict=strict).packed())
    follower = Follower(Shortest(sent))
    place = follower.start()
    for byte in begun:
        place = follower.after(place, bytes([byte]))
    assert ends in [text[start:] for text, start in follower.endings(place)]
    assert follower.endings(place) == follower.endings(
        follower.after(follower.start(), begun)
    )
