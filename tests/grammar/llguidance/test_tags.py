"""Structural tags as one grammar: the texts that xgrammar takes, and schemas as they
are outside."""

import time
from random import Random

import numpy as np
import pytest
from raw_xgrammar import RAW, compiler_with_raw
from stopping import Walker, special_vocabulary
from tag_forms import (
    CALL,
    FORMS,
    VOCABULARY,
    const,
    follows,
    grown,
    json_of,
    tag,
    triggered,
)

from guided_plugin.errors import (
    GrammarError,
    SpecError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.llguidance.tags import tag_to_lark
from guided_plugin.spec import OutputSpec


@pytest.fixture(scope="module")
def compiler():
    return compiler_with_raw(VOCABULARY)


def compiled(compiler, form, backend="llguidance", **options):
    return compiler.compile(
        OutputSpec.structural_tag({"format": form}, backend=backend, **options)
    )


def takes(compiler, form, text, **options):
    return follows(compiler, compiled(compiler, form, **options), text)[1]


ANY = {"type": "any_text"}


class TestSameAsXgrammar:
    @pytest.mark.parametrize("name", FORMS)
    def test_takes_the_same_texts(self, compiler, name):
        form = FORMS[name]
        ours = compiled(compiler, form, whitespace="flexible")
        grammars = ours, compiled(compiler, form, RAW, whitespace="flexible")
        controls = CALL in str(form)
        texts = grown(compiler, grammars, name, 150)
        # xgrammar reads control tokens as text; here they are only where a begin or an
        # end names them.
        judged = [
            (t, ours, theirs)
            for t, ours, theirs in texts
            if "\x01" not in t or (controls and ours[0])
        ]
        assert [found for found in judged if found[1] != found[2]] == []
        assert any(ours[0] for _, ours, _ in judged)

    def test_the_older_form(self, compiler):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        }
        older = {
            "structures": [
                {"begin": f"<f={name}>", "schema": schema, "end": "</f>"}
                for name in "ab"
            ],
            "triggers": ["<f="],
        }
        grammars = [
            compiler.compile(
                OutputSpec.structural_tag(older, backend=backend, whitespace="flexible")
            )
            for backend in ("llguidance", RAW)
        ]
        texts = grown(compiler, tuple(grammars), "older", 150)
        judged = [
            (text, ours, theirs) for text, ours, theirs in texts if "\x01" not in text
        ]
        assert [found for found in judged if found[1] != found[2]] == []
        assert any(ours[1] for _, ours, _ in judged)


class TestControlTokens:
    @pytest.mark.parametrize("name", [name for name in FORMS if "token" in name])
    def test_only_those_that_the_tag_names_are_allowed(self, compiler, name):
        grammar = compiled(compiler, FORMS[name])
        backend = compiler.backend("llguidance")
        chance = Random(name)
        seen = False
        for _ in range(20):
            matcher = backend.start(grammar, (256,))
            batch = backend.batch([matcher])
            mask = np.zeros((1, VOCABULARY.words), np.int32)
            for _ in range(12):
                batch.fill(mask, [0])
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                assert not bits[258:].any()
                assert bool(bits[256]) == matcher.complete
                seen |= bool(bits[257])
                allowed = [
                    token for token in np.flatnonzero(bits).tolist() if token != 256
                ]
                if not allowed:
                    break
                token = (
                    257
                    if bits[257] and chance.random() < 0.7
                    else chance.choice(allowed)
                )
                assert batch.accept([token]) == [True]
        assert seen

    @pytest.mark.parametrize("text", ["\x01", CALL])
    def test_are_also_taken_as_text(self, compiler, text):
        form = triggered(
            tag(f"{CALL}f:", json_of({"type": "null"}), CALL), triggers=(CALL,)
        )
        assert takes(compiler, form, f"so {text}f:null{text} and {text}f:null\x01.")
        assert not takes(compiler, form, f"so {text}g:null{text}")

    def test_a_stop_token_is_none_of_them(self, compiler):
        assert takes(compiler, tag("<x>", ANY, "</s>"), "<x>a</s>")


class TestSchemas:
    @pytest.mark.parametrize(
        ("schema", "place"),
        [
            ({"not": {"type": "array", "uniqueItems": True}}, "/not/uniqueItems"),
            (
                {"properties": {"a": {"type": "string", "pattern": "(a)\\1"}}},
                "/properties/a/pattern",
            ),
            ({"not": {"pattern": "a(?<=b)"}}, "/not/pattern"),
        ],
    )
    def test_a_refusal_names_its_place_in_the_whole_tag(self, compiler, schema, place):
        form = triggered(
            tag("<f=", json_of(True), "<"), tag("<f=g", json_of(schema), "<")
        )
        with pytest.raises(UnsupportedSpecError) as caught:
            compiled(compiler, form)
        assert caught.value.where == f"#/format/tags/1/content/json_schema{place}"

    def test_a_malformed_one_is_named(self, compiler):
        form = tag("<f>", json_of({"properties": {"a": {"type": 1}}}), "</f>")
        with pytest.raises(SpecError) as caught:
            compiled(compiler, form)
        assert caught.value.where == "#/format/content/json_schema/properties/a/type"

    def test_one_that_allows_nothing_is_refused(self, compiler):
        with pytest.raises(UnsatisfiableSpecError) as caught:
            compiled(
                compiler,
                tag("<f>", json_of({"type": "integer", "not": {}}), "</f>"),
                "auto",
            )
        assert caught.value.where == "#/format/content/json_schema/not"

    def test_many_in_one_grammar_keep_apart(self, compiler):
        schemas = [
            {
                "type": "object",
                "properties": {"a": {"enum": [value]}, "b": {}},
                "required": ["a"],
            }
            for value in ("x", "y", 3)
        ]
        form = triggered(
            *(tag(f"<f={i}>", json_of(s), "</f>") for i, s in enumerate(schemas))
        )
        for i, value in enumerate(('"x"', '"y"', "3")):
            for other in ('"x"', '"y"', "3"):
                text = f'<f={i}>{{"a":{other},"b":[1,{{"c":null}}]}}</f>'
                assert takes(compiler, form, text) == (value == other)

    def test_strict_and_any_order(self, compiler):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a"],
        }
        form = tag("<", json_of(schema), ">")
        free = tag("<", json_of(schema, any_order=True), ">")
        turned = '<{"b":1,"a":1}>'
        more = '<{"a":1,"c":1}>'
        fewer = '<{"b":1}>'
        assert [takes(compiler, form, text) for text in (turned, more, fewer)] == [
            False,
            False,
            False,
        ]
        assert [takes(compiler, free, text) for text in (turned, more, fewer)] == [
            True,
            False,
            False,
        ]
        open_ones = [
            takes(compiler, form, text, strict=False) for text in (turned, more, fewer)
        ]
        assert open_ones == [True, True, False]

    def test_whitespace(self, compiler):
        form = tag(
            "{",
            {"type": "json_schema", "json_schema": {"items": {"type": "integer"}}},
            "}",
        )
        spaced = '{{ "a" :\n[ 1 ,2 ] }}'
        assert not takes(compiler, form, spaced, whitespace="compact")
        assert takes(compiler, form, spaced)
        assert takes(compiler, form, spaced, whitespace="flexible")
        assert takes(compiler, form, '{{"a":[1,2]}}', whitespace="flexible")
        as_dumped = '{{"a": [1, 2]}}'
        layouts = (
            as_dumped,
            '{{"a":[1,2]}}',
            spaced,
            '{{"a": [1,2]}}',
            '{{"a": [1, 2 ]}}',
            '{{"a": [1, 2]} }',
        )
        assert [
            text for text in layouts if takes(compiler, form, text, whitespace="spaced")
        ] == [as_dumped]
        for outside in ('{ {"a":1}}', '{{"a":1} }', ' {{"a":1}}', '{"a b"}'):
            assert takes(compiler, form, outside, whitespace="flexible") == (
                outside == '{"a b"}'
            )


NUMBER = json_of({"type": "integer"})


def pair(first, second):
    return {"type": "sequence", "elements": [first, second]}


def regex(pattern):
    return {"type": "regex", "pattern": pattern}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        *(("a/b", "a/b"), (r"a\/b", "a/b"), (r"a\\/b", r"a\/b"), ("a\nb", "a\nb")),
        *((r"[/\\]{2}", "/\\"), (r"a\\", "a\\"), (r"\\\/\n", "\\/\n")),
    ],
)
def test_regexes_with_slashes_and_lines(compiler, pattern, text):
    form = tag("<", regex(pattern), ">")
    assert takes(compiler, form, f"<{text}>")
    assert not takes(compiler, form, f"<{text[:-1]}>")


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("form", "says"),
        [
            (pair(NUMBER, const("0;")), "JSON before a text"),
            (pair(NUMBER, ANY), "JSON before a text"),
            (pair(regex("[a-z]+"), const("end")), "the regex"),
            (
                pair({"type": "or", "elements": [const("a"), const("ab")]}, const("b")),
                "'a' next to 'ab'",
            ),
            (
                {"type": "or", "elements": [pair(const("<a>"), NUMBER), ANY]},
                "free text next to '<a>'",
            ),
            (
                {
                    "type": "or",
                    "elements": [regex("[0-9]+,"), pair(NUMBER, const(";"))],
                },
                "next to",
            ),
            (pair(ANY, const("x")), "free text before"),
            ({"type": "star", "content": ANY}, "free text"),
            ({"type": "any_text", "max_chars": 3}, "#/format/max_chars"),
            (json_of({}, style="cohere_xml"), "cohere_xml"),
            (json_of({}, excludes=["x"]), "#/format/excludes"),
            ({"type": "grammar", "grammar": 'root ::= "a"'}, "'grammar'"),
            ({"type": "exclude_token", "exclude_tokens": []}, "'exclude_token'"),
            ({"type": "any_tokens"}, "write any_text"),
            ({"type": "token", "token": CALL}, "const_string"),
            ({"type": "repeat", "min": 1, "max": 2, "content": ANY}, "or a sequence"),
            *(
                ({"type": kind}, "write triggered_tags")
                for kind in ("dispatch", "token_dispatch", "token_triggered_tags")
            ),
            (tag({"type": "token", "token": CALL}, ANY, CALL), "#/format/begin"),
            (json_of({}, max_whitespace_cnt=2), "#/format/max_whitespace_cnt"),
            ({"type": "any_text", "later": 1}, "#/format/later"),
        ],
    )
    @pytest.mark.parametrize("backend", ["llguidance"])
    def test_with_its_reason(self, compiler, form, says, backend):
        with pytest.raises(GrammarError) as caught:
            compiled(compiler, form, backend)
        assert says in str(caught.value)


def test_hundreds_of_tools_are_read_in_a_second():
    """Of a processor: their parts are compared in pairs, once each."""
    tools = [tag(f"<f=tool_{number}>", json_of(True), "</f>") for number in range(300)]
    start = time.process_time()
    tag_to_lark(OutputSpec.structural_tag({"format": triggered(*tools)}), {})
    assert time.process_time() - start < 5


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole words"])
def test_walks_have_no_dead_ends_and_end_complete(padded):
    compiler = compiler_with_raw(special_vocabulary(padded=padded))
    walker = Walker(compiler)
    named = compiler.vocabulary.tokens.index(b"<tool_call>")
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 4},
            "b": {"type": "integer"},
        },
        "required": ["a"],
    }
    call = tag("<tool_call>\n", json_of(schema), "</tool_call>")
    form = triggered(
        call, triggers=("<tool_call>",), stop_after_first=True, at_least_one=True
    )
    closing = compiler.vocabulary.tokens.index(b"</tool_call>")
    grammar = compiled(compiler, form)
    for seed in range(15):
        walk = walker.wander(
            grammar, Random(seed), 200, whole=lambda _: True, named=[named, closing]
        )
        assert walk.accepted, seed
        assert walk.early == walk.leaks == []


class TestOverlaps:
    """Triggers, ends and excluded texts that share characters."""

    @pytest.mark.parametrize("exclude", ["<f=", "f=", "=", "no <f="])
    def test_a_trigger_that_is_excluded_is_refused(self, compiler, exclude):
        form = triggered(tag("<f=", NUMBER, ">"), excludes=[exclude])
        with pytest.raises(UnsupportedSpecError, match="excluded text"):
            compiled(compiler, form)

    def test_a_trigger_that_begins_an_excluded_text(self, compiler):
        form = triggered(tag("<", NUMBER, ">"), triggers=("<",), excludes=["</y>"])
        assert follows(compiler, compiled(compiler, form), "a</") == (False, False)
        assert takes(compiler, form, "a<1>")

    @pytest.mark.parametrize(
        "loop",
        [
            {"type": "star", "content": {"type": "plus", "content": const("ab")}},
            pair(
                {"type": "star", "content": const("ab")},
                {"type": "plus", "content": const("ab")},
            ),
        ],
    )
    def test_repetitions_in_several_ways_are_refused(self, compiler, loop):
        with pytest.raises(UnsupportedSpecError, match="several ways"):
            compiled(compiler, loop)
