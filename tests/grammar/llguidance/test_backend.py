"""The llguidance backend: what it takes and refuses, its stop tokens, its batches."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llguidance_specs import END, OTHER_END, PERSON, VOCABULARY, allowed, takes

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import (
    CompileLimitError,
    GrammarError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.forced import ForcedTokens


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (
            OutputSpec.json_schema(PERSON),
            ['{"name":"x"}', '{"name": "x"}'],
            ['{"name":"x","y":1}', "{}"],
        ),
        (
            OutputSpec.json_schema(PERSON, whitespace="compact"),
            ['{"name":"x"}'],
            ['{"name": "x"}'],
        ),
        (
            OutputSpec.json_schema(PERSON, whitespace="flexible"),
            ['{"name": "x"}'],
            ['{"name": 1}'],
        ),
        (
            OutputSpec.json_schema(PERSON, strict=False),
            ['{"name":"x","y":1}'],
            ['{"y":1}'],
        ),
        (OutputSpec.json_schema(True), ["1", "{}", "null"], ["", "x"]),
        (
            OutputSpec.json_schema(
                {"type": "string", "pattern": '^"[a-z]+$', "maxLength": 3}
            ),
            ['"\\"ab"'],
            ['"\\"abc"', '"ab"', '""ab"'],
        ),
        (OutputSpec.json_object(), ["{}", '{"a":[1,{}]}'], ["[]", "1"]),
        (OutputSpec.regex("[a-z]{2,3}"), ["ab", "abc"], ["a", "abcd", "a1"]),
        (OutputSpec.choice(["yes", 'n"o\n', "é"]), ["yes", 'n"o\n', "é"], ["no", "ye"]),
        (
            OutputSpec.choice([f"no {i}" for i in range(9_000)]),
            ["no 8999", "no 1"],
            ["no 9000", "no "],
        ),
        (OutputSpec.grammar('start: "a" start | "b"', "lark"), ["b", "aab"], ["aa"]),
    ],
    ids=lambda value: value.summary() if isinstance(value, OutputSpec) else "",
)
def test_languages(backend, spec, good, bad):
    assert [text for text in good if not takes(backend, spec, text)] == []
    assert [text for text in bad if takes(backend, spec, text)] == []


_TWICE = {"T0": {"const": "abc"}} | {
    f"T{i}": {
        "type": "array",
        "prefixItems": [{"$ref": f"#/$defs/T{i - 1}"}] * 2,
        "items": False,
        "minItems": 2,
    }
    for i in range(1, 10)
}
_TAG = {"type": "tag", "begin": "ab<", "content": {"type": "any_text"}, "end": "</ab>"}


@pytest.mark.parametrize(
    ("spec", "jumps", "looks"),
    [
        (OutputSpec.regex("ab(abc){20000}"), True, False),
        (OutputSpec.regex("ab(abc){20000}"), False, True),
        (OutputSpec.regex("ab((c{50}){50}){20}"), True, False),
        (OutputSpec.regex("abc{3}[a-z]{60000}"), True, False),
        (OutputSpec.regex(r"ab(\p{Lu}|c{50}){50}"), True, False),
        (OutputSpec.regex(r"ab\p{Lu}"), True, True),
        (
            OutputSpec.json_schema(
                {"$defs": _TWICE, "$ref": "#/$defs/T8"}, whitespace="compact"
            ),
            True,
            False,
        ),
        (
            OutputSpec.json_schema(
                {"$defs": _TWICE, "$ref": "#/$defs/T1"}, whitespace="compact"
            ),
            True,
            True,
        ),
        (OutputSpec.grammar('start: "abc"', "lark"), True, False),
        (OutputSpec.grammar('start: "abc"', "lark"), False, True),
        (
            OutputSpec.json_schema(
                {"type": "array", "items": {"const": "ab" * 40}, "minItems": 20},
                whitespace="compact",
            ),
            True,
            False,
        ),
        (OutputSpec.choice(["abc" * 100, "abd"]), True, True),
        (OutputSpec.structural_tag({"format": _TAG}), True, True),
    ],
)
def test_long_text_that_must_follow_is_not_looked_for_while_others_wait(
    spec, jumps, looks
):
    backend = GrammarCompiler(
        VOCABULARY, config=GuidedConfig(jump_forward=jumps)
    ).backend("llguidance")
    for grammar in (backend.compile(spec), backend.load(backend.prepare(spec))):
        matcher = backend.start(grammar, (END,))
        assert b"ab" in matcher.forced()
        assert bool(ForcedTokens(VOCABULARY).behind(matcher, 7)) == looks


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        (OutputSpec.json_schema(False), UnsatisfiableSpecError, "no output"),
        (
            OutputSpec.json_schema({"$ref": "#"}),
            UnsupportedSpecError,
            "refers to itself",
        ),
        (
            OutputSpec.json_schema({"items": {"not": {"uniqueItems": True}}}),
            UnsupportedSpecError,
            "#/items/not/uniqueItems",
        ),
        (OutputSpec.regex("a(?<=b)"), UnsupportedSpecError, "lookbehind"),
        (OutputSpec.regex("["), GrammarError, "regex"),
        (OutputSpec.grammar('root ::= "a"'), UnsupportedSpecError, "EBNF"),
        (
            OutputSpec.structural_tag({"format": {}}),
            UnsupportedSpecError,
            "#/format: a format of type None",
        ),
    ],
)
def test_refusals_are_one_line(backend, spec, error, says):
    with pytest.raises(error) as caught:
        backend.compile(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_forced_text_may_be_spelt_with_any_tokens():
    tokens = [
        *(bytes([byte]) for byte in range(256)),
        b"</s>",
        b'{"',
        b'{"na',
        b'name":',
    ]
    wide = Vocabulary.from_tokens(tokens, [END])
    forced = OutputSpec.json_schema({**PERSON, "required": ["name"]})
    backend = GrammarCompiler(wide).backend("llguidance")
    mask = np.zeros((1, wide.words), np.int32)
    matcher = backend.start(backend.compile(forced), (END,))
    backend.batch([matcher]).fill(mask, [0])
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits).tolist()) == {ord("{"), 257, 258}


def test_stop_tokens_of_one_request(backend):
    grammar = backend.compile(OutputSpec.regex("a+"))
    usual = backend.start(grammar, (END,))
    own = backend.start(grammar, (OTHER_END,))
    assert allowed(backend, [usual, own]) == [{ord("a")}, {ord("a")}]
    batch = backend.batch([usual, own])
    assert batch.accept([ord("a"), ord("a")]) == [True, True]
    assert allowed(backend, [usual, own]) == [{ord("a"), END}, {ord("a"), OTHER_END}]
    assert batch.accept([OTHER_END, END]) == [False, False]


@pytest.mark.parametrize("count", [3, 32, 33, 90])
def test_a_batch_tells_which_matchers_refused(backend, count):
    grammar = backend.compile(OutputSpec.regex("[a-c]{90}d"))
    matchers = [backend.start(grammar, (END,)) for _ in range(count)]
    for ahead, matcher in enumerate(matchers):
        assert matcher.accept_text(b"abc"[: ahead % 3] * 30)
    batch = backend.batch(matchers)
    wrong = {1, count - 1}
    for _ in range(2):
        tokens = [ord("z" if place in wrong else "b") for place in range(count)]
        assert batch.accept(tokens) == [place not in wrong for place in range(count)]
        wrong |= {0}


@pytest.mark.parametrize(
    "text",
    [
        *map(chr, range(33)),
        "\x7f",
        'say "hi"',
        "\\n \\u0041",
        "é 世界 👋\U0010ffff",
        "/[a-z]*/",
    ],
)
def test_every_choice_comes_out_as_it_went_in(backend, text):
    spec = OutputSpec.choice([f"a{text}b", "ab"])
    matcher = backend.start(backend.compile(spec), (END,))
    assert matcher.accept_text(f"a{text}b".encode())
    assert matcher.complete


def test_keywords_may_be_left_unenforced():
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    config = GuidedConfig(unenforced_keywords=("uniqueItems",))
    compiler = GrammarCompiler(VOCABULARY, config=config)
    backend = compiler.backend("llguidance")
    spec = OutputSpec.json_schema(schema)
    assert takes(backend, spec, '["a","a"]')
    assert (
        compiler.compile(spec).unenforced
        == backend.compile(spec).admission().unenforced
        == ("uniqueItems",)
    )
    prepared = backend.prepare(spec)
    assert prepared.unenforced == backend.load(prepared).unenforced == ("uniqueItems",)
    tag = {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "",
    }
    assert compiler.compile(OutputSpec.structural_tag({"format": tag})).unenforced == (
        "uniqueItems",
    )


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "array", "maxItems": 2}, ()),
        ({"type": "array", "uniqueItems": False}, ()),
        ({"type": "string", "uniqueItems": True}, ()),
        ({"enum": ["uniqueItems"]}, ()),
        ({"properties": {"pattern": {"pattern": "^a$", "maxLength": 2}}}, ("pattern",)),
        (
            {"anyOf": [{"format": "date"}, {"type": "array", "uniqueItems": True}]},
            ("format", "uniqueItems"),
        ),
        ({"type": "string", "format": "colour"}, ()),
    ],
)
def test_only_keywords_that_would_count_are_left_unenforced(schema, left):
    config = GuidedConfig(
        unenforced_keywords=("uniqueItems", "pattern", "format"), isolate_compiles=False
    )
    compiler = GrammarCompiler(VOCABULARY, config=config)
    assert compiler.compile(OutputSpec.json_schema(schema)).unenforced == left


def test_a_pattern_that_meets_a_length_is_taken_to_its_end(backend):
    spec = OutputSpec.json_schema(
        {"pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500, "type": "string"}
    )
    text = '"' + "word " * 49 + "x"
    matcher = backend.start(backend.compile(spec), VOCABULARY.stop_token_ids)
    for byte in text.encode():
        assert byte in allowed(backend, [matcher])[0]
        assert matcher.accept(byte)
    assert ord("y") in allowed(backend, [matcher])[0]
    assert ord(" ") not in allowed(backend, [matcher])[0]


def test_names_left_open_have_one_spelling(backend):
    schema = {"properties": {"a": {"type": "integer"}, "\n": {"const": "\t"}}}
    spec = OutputSpec.json_schema(schema, strict=False)
    assert takes(backend, spec, '{"a":1,"\\n":"\\t","b":"\\\\"}')
    assert not takes(backend, spec, '{"\\u0061":"x"}')
    with_control = {"properties": {"a": {"type": "integer"}, "b": {"const": "\x01"}}}
    spec = OutputSpec.json_schema(with_control, strict=False)
    assert takes(backend, spec, '{"b":"\\u0001"}')
    assert not takes(backend, spec, '{"\\u0061":"x"}')


def _properties(count, **keywords):
    return OutputSpec.json_schema(
        {"properties": {f"p{i}": {"type": "string"} for i in range(count)}, **keywords}
    )


def _chain(count):
    rules = (f'a{i}: ("x" a{i + 1})?\n' for i in range(count))
    return OutputSpec.grammar(
        "start: a0\n" + "".join(rules) + f'a{count}: "y"\n', "lark"
    )


@pytest.mark.parametrize(
    "make",
    [
        _properties,
        lambda count: _properties(count, required=[f"p{i}" for i in range(count)]),
        lambda count: _properties(
            count, minProperties=1, anyOf=[{"required": ["p0"]}, {"required": ["p1"]}]
        ),
        lambda count: _chain(count // 2),
    ],
    ids=["optional", "required", "alternatives", "lark"],
)
def test_a_grammar_nested_too_deep_for_llguidances_stack_is_refused_before_it(
    backend, make
):
    """Just below the bound llguidance reads it, also in a thread; 2,700 rules end the
    process."""
    with ThreadPoolExecutor(1) as thread:
        assert (
            thread.submit(backend.compile, make(1_990)).result().backend == "llguidance"
        )
    with pytest.raises(
        CompileLimitError, match=r"nests \d+ rules .* llguidance supports at most 2000"
    ):
        backend.compile(make(2_010))


def _either(count):
    properties = {f"p{i}": {"type": "null"} for i in range(count)}
    return {
        "type": "object",
        "properties": properties,
        "anyOf": [{"required": ["p0"]}, {"required": ["p1"]}],
    }


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (_either, "#/properties"),
        (lambda count: {"items": _either(count)}, "#/items/properties"),
        (
            lambda count: {"enum": [{"p1": i, "p2": None} for i in range(count // 2)]},
            "#/enum",
        ),
    ],
)
def test_more_properties_in_any_order_than_a_row_holds_are_refused_before_a_request(
    backend, schema, where
):
    """Just below the bound an object can begin; above it llguidance would stop at the
    brace."""
    text = '{"p1":1,"p2":null}' if where == "#/enum" else '{"p1":null}'
    text = f"[{text}]" if "items" in where else text
    assert takes(backend, OutputSpec.json_schema(schema(3_900), strict=False), text)
    with pytest.raises(
        CompileLimitError, match="properties in any order may come at one place"
    ) as caught:
        backend.compile(OutputSpec.json_schema(schema(5_000), strict=False))
    assert caught.value.where == where


def test_members_in_any_order_are_not_nested(backend):
    assert backend.compile(_properties(3_300, minProperties=1)).backend == "llguidance"


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
