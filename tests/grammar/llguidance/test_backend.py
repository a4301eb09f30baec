"""The llguidance backend: what it takes, its limits, its stop tokens, its batches."""

import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compilers import compiler_of, start, taken_of, takes, tokens_of
from llguidance_specs import END, OTHER_END, VOCABULARY

from guided_plugin import OutputSpec
from guided_plugin.errors import CompileLimitError
from guided_plugin.grammar.forced import ForcedTokens

COMPILER = compiler_of(VOCABULARY, threads=2)
BACKEND = COMPILER.backend("llguidance")
LONG = [f"no {i}" for i in range(9_000)]
NAMES = json.loads(r"""{"properties":
    {"a": {"type": "integer"}, "\n": {"const": "\t"}, "b": {"const": "\u0001"}}}""")
AWKWARD = [f"a{text}b" for text in ("", 'n"o\n', 'say "hi"', "\\n \\u0041", "/[a-z]*/")]


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (OutputSpec.json_object(), ["{}", '{"a":[1,{}]}'], ["[]", "1"]),
        (OutputSpec.regex("[a-z]{2,3}"), ["ab", "abc"], ["a", "abcd", "a1"]),
        (OutputSpec.choice(AWKWARD), AWKWARD, ["a", "a/b", 'an"o\\nb']),
        (OutputSpec.choice(LONG), ["no 8999", "no 1"], ["no 9000", "no "]),
        (OutputSpec.grammar('start: "a" start | "b"', "lark"), ["b", "aab"], ["aa"]),
        (
            OutputSpec.json_schema(NAMES, strict=False),
            ['{"a":1,"\\n":"\\t","c":"\\\\"}', '{"b":"\\u0001"}'],
            ['{"\\u0061":"x"}', '{"a":"x"}', '{"b":"\\u0002"}'],
        ),
    ],
)
def test_languages(spec, good, bad):
    assert taken_of(COMPILER, spec, good + bad) == good


def pairs(depth):
    """Pairs of pairs, which become one text that must follow."""
    pair = {"type": "array", "items": False, "minItems": 2}
    last = {"const": "abc"}
    for _ in range(depth):
        last = {**pair, "prefixItems": [last, last]}
    return OutputSpec.json_schema(last, whitespace="compact")


TAG = {"type": "tag", "begin": "ab<", "content": {"type": "any_text"}, "end": "</ab>"}
LARK = OutputSpec.grammar('start: "abc"', "lark")


@pytest.mark.parametrize(
    ("spec", "jumps", "looks"),
    [
        (OutputSpec.regex("ab(abc){20000}"), True, False),
        (OutputSpec.regex("ab(abc){20000}"), False, True),
        (OutputSpec.regex("ab((c{50}){50}){20}"), True, False),
        (OutputSpec.regex("abc{3}[a-z]{60000}"), True, False),
        (OutputSpec.regex(r"ab([A-Z]|c{50}){50}"), True, True),
        (OutputSpec.regex(r"ab[A-Z]"), True, True),
        (pairs(8), True, False),
        (pairs(1), True, True),
        (LARK, True, False),
        (LARK, False, True),
        (OutputSpec.choice(["abc" * 100, "abd"]), True, True),
        (OutputSpec.structural_tag({"format": TAG}), True, True),
    ],
)
def test_long_text_that_must_follow_is_not_looked_for_while_others_wait(
    spec, jumps, looks
):
    backend = compiler_of(VOCABULARY, jump_forward=jumps).backend("llguidance")
    for grammar in (backend.compile(spec), backend.load(backend.prepare(spec))):
        matcher = backend.start(grammar, (END,))
        assert b"ab" in matcher.forced()
        assert bool(ForcedTokens(VOCABULARY).after(matcher, 7)) == looks


def shown(*matchers):
    """The tokens that their masks show, filled in one batch."""
    masks = np.zeros((len(matchers), VOCABULARY.words), np.int32)
    BACKEND.batch(list(matchers)).fill(masks, list(range(len(matchers))))
    return tokens_of(masks)


def test_stop_tokens_of_one_request():
    grammar = BACKEND.compile(OutputSpec.regex("a+"))
    usual = BACKEND.start(grammar, (END,))
    own = BACKEND.start(grammar, (OTHER_END,))
    letter = ord("a")
    assert shown(usual, own) == [[letter], [letter]]
    batch = BACKEND.batch([usual, own])
    assert batch.accept([letter, letter]) == [True, True]
    assert shown(usual, own) == [[letter, END], [letter, OTHER_END]]
    assert batch.accept([OTHER_END, END]) == [False, False]


@pytest.mark.parametrize("count", [3, 32, 33, 90])
def test_a_batch_tells_which_matchers_refused(count):
    grammar = BACKEND.compile(OutputSpec.regex("[a-c]{90}d"))
    matchers = [start(COMPILER, grammar) for _ in range(count)]
    for ahead, matcher in enumerate(matchers):
        assert matcher.accept_text(b"abc"[: ahead % 3] * 30)
    batch = BACKEND.batch(matchers)
    for wrong in ({1, count - 1}, {0, 1, count - 1}):
        tokens = [ord("z" if place in wrong else "b") for place in range(count)]
        assert batch.accept(tokens) == [place not in wrong for place in range(count)]


def test_keywords_may_be_left_unenforced():
    compiler = compiler_of(VOCABULARY, unenforced_keywords=("uniqueItems",))
    backend = compiler.backend("llguidance")
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    spec = OutputSpec.json_schema(schema)
    content = {"type": "json_schema", "json_schema": schema}
    tagged = OutputSpec.structural_tag({"format": {**TAG, "content": content}})
    assert takes(compiler, spec, '["a","a"]')
    assert takes(compiler, tagged, 'ab<["a","a"]</ab>')
    left = ("uniqueItems",)
    for one in (spec, tagged):
        prepared = backend.prepare(one)
        assert compiler.compile(one).unenforced == left
        assert prepared.unenforced == backend.load(prepared).unenforced == left


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ('{"type": "array", "maxItems": 2}', ()),
        ('{"type": "array", "uniqueItems": false}', ()),
        ('{"type": "string", "uniqueItems": true}', ()),
        ('{"enum": ["uniqueItems"]}', ()),
        (
            '{"properties": {"pattern": {"pattern": "^a$", "maxLength": 2}}}',
            ("pattern",),
        ),
        (
            '{"anyOf": [{"format": "date"}, {"type": "array", "uniqueItems": true}]}',
            ("format", "uniqueItems"),
        ),
        ('{"type": "string", "format": "colour"}', ()),
    ],
)
def test_only_keywords_that_would_count_are_left_unenforced(schema, left):
    names = ("uniqueItems", "pattern", "format")
    compiler = compiler_of(VOCABULARY, unenforced_keywords=names)
    assert compiler.compile(OutputSpec.json_schema(schema)).unenforced == left


def test_a_pattern_that_meets_a_length_is_taken_to_its_end():
    words = {"pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500, "type": "string"}
    matcher = start(COMPILER, OutputSpec.json_schema(words))
    for byte in b'"' + b"word " * 49 + b"x":
        assert byte in shown(matcher)[0]
        assert matcher.accept(byte)
    assert ord("y") in shown(matcher)[0]
    assert ord(" ") not in shown(matcher)[0]


def properties(count, **keywords):
    described = {f"p{i}": {"type": "string"} for i in range(count)}
    return OutputSpec.json_schema({"properties": described, **keywords}, strict=True)


def chain(count):
    last = count // 2
    rules = "".join(f'a{i}: ("x" a{i + 1})?\n' for i in range(last))
    return OutputSpec.grammar(f'start: a0\n{rules}a{last}: "y"\n', "lark")


@pytest.mark.parametrize("make", [properties, chain])
def test_a_grammar_nested_too_deep_for_llguidances_stack_is_refused_before_it(make):
    """Just below the bound llguidance reads it, also in a thread; 2,700 rules end the
    process."""
    with ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(BACKEND.compile, make(1_990)).result()
    assert compiled.backend == "llguidance"
    says = r"nests \d+ rules .* llguidance supports at most 2000"
    with pytest.raises(CompileLimitError, match=says):
        BACKEND.compile(make(2_010))


def test_members_that_are_required_or_in_any_order_are_not_nested():
    in_any_order = dataclasses.replace(properties(3_300), strict=False)
    BACKEND.compile(in_any_order)
    BACKEND.compile(properties(3_300, required=[f"p{i}" for i in range(3_300)]))


def either(count):
    schema = {"properties": {f"p{i}": {"type": "null"} for i in range(count)}}
    return {**schema, "anyOf": [{"required": ["p0"]}, {"required": ["p1"]}]}


def objects(count):
    return {"enum": [{"p1": i, "p2": None} for i in range(count // 2)]}


@pytest.mark.parametrize(
    ("schema", "where", "text"),
    [
        (either, "#/properties", '{"p1":null}'),
        (objects, "#/enum", '{"p1":1,"p2":null}'),
    ],
)
def test_more_properties_in_any_order_than_a_row_holds_are_refused_before_a_request(
    schema, where, text
):
    """Just below the bound an object can begin; above it llguidance would stop at the
    brace."""
    assert takes(COMPILER, OutputSpec.json_schema(schema(3_900), strict=False), text)
    says = "properties in any order may come at one place"
    with pytest.raises(CompileLimitError, match=says) as caught:
        BACKEND.compile(OutputSpec.json_schema(schema(5_000), strict=False))
    assert caught.value.where == where


GROWTH = """
import ctypes, itertools, pathlib, random
import guided_plugin as gp
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from vocabularies import BYTES

def grown():
    ctypes.CDLL(None).malloc_trim(0)
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

def schema(chance, depth=0):
    if depth > 2 or chance.random() < 0.5:
        return chance.choice([
            {"type": "string"}, {"type": "integer"}, {"type": "number", "minimum": 0}, {"type": "boolean"},
            {"enum": [f"value {chance.random()}" for _ in range(chance.randint(1, 8))]},
            {"type": "string", "format": "date-time"}, {"type": "string", "maxLength": chance.randint(1, 99)},
            {"type": "string", "pattern": f"^[a-z]{{1,{chance.randint(2, 20)}}}$"},
        ])
    if chance.random() < 0.3:
        return {"type": "array", "items": schema(chance, depth + 1)}
    names = [f"name_{chance.randrange(10**6)}" for _ in range(chance.randint(1, 12))]
    return {"type": "object", "properties": {name: schema(chance, depth + 1) for name in names}}

def compiled():
    for seed in itertools.count():
        chance = random.Random(seed)
        options = {"strict": chance.random() < 0.5, "whitespace": chance.choice(["compact", "flexible"])}
        spec = gp.OutputSpec.json_schema(schema(chance), **options)
        yield backend.compile(spec.settled(gp.GuidedConfig()))

backend = LLGuidanceBackend(BYTES, gp.GuidedConfig(threads=1))
grammars = compiled()
warm = list(itertools.islice(grammars, 40))
before = grown()
kept = list(itertools.islice(grammars, 150))
print(sum(one.size_bytes for one in kept), grown() - before)
"""


def test_the_size_of_a_grammar_is_about_what_it_takes():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said, grown = map(int, done.stdout.split())
    assert grown < said < 1.6 * grown
