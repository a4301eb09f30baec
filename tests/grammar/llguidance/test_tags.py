"""Structural tags as one grammar: the texts that xgrammar takes, and schemas as they
are outside.

Of random schemas in tags test_fuzz.py says that they mean the same as outside.
"""

import json
import time
from random import Random

import pytest
from compilers import allowed, compiler_of, start
from raw_xgrammar import RAW, compiler_with_raw
from stopping import Walker, special_vocabulary
from tag_forms import (
    CALL,
    FORMS,
    VOCABULARY,
    follows,
    grown,
    json_of,
    tag,
    triggered,
)

from guided_plugin.errors import GuidedError
from guided_plugin.grammar.llguidance.tags import tag_to_lark
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

END = 256
COMPILER = compiler_with_raw(VOCABULARY)


def compiled(form, backend="llguidance", compiler=COMPILER, **options):
    tags = form if "structures" in form else {"format": form}
    spec = OutputSpec.structural_tag(tags, backend=backend, **options)
    return compiler.compile(spec)


def taken(grammar, texts, compiler=COMPILER):
    return [text for text in texts if follows(compiler, grammar, text)[1]]


OLDER = json.loads("""{"triggers": ["<f="], "structures": [
    {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
    {"begin": "<f=b>", "schema": {"type": "string"}, "end": "</f>"}]}""")


@pytest.mark.parametrize("name", [*FORMS, "older"])
def test_the_same_texts_are_taken_as_by_xgrammar(name):
    """But control tokens, which it reads as text: here they are only where a begin or
    an end names them."""
    form = FORMS.get(name, OLDER)
    ours = compiled(form, whitespace="flexible")
    theirs = compiled(form, RAW, whitespace="flexible")
    texts = grown(COMPILER, (ours, theirs), name, 150)
    named = CALL in str(form)
    judged = [
        verdicts
        for text, *verdicts in texts
        if "\x01" not in text or (named and verdicts[0][0])
    ]
    assert [one for one in judged if one[0] != one[1]] == []
    assert any(one[0][0] for one in judged)


@pytest.mark.parametrize("name", [name for name in FORMS if "token" in name])
def test_only_control_tokens_that_a_tag_names_are_allowed(name):
    grammar = compiled(FORMS[name])
    chance = Random(name)
    call, other = VOCABULARY.special_ids - {END}
    seen = 0
    for _ in range(20):
        matcher = start(COMPILER, grammar)
        for _ in range(12):
            shown = allowed(matcher)
            assert max(shown) < max(call, other)
            assert (END in shown) == matcher.complete
            candidates = [token for token in shown if token != END]
            if not candidates:
                break
            token = chance.choice(candidates)
            if candidates[-1] > END and chance.random() < 0.7:
                token = candidates[-1]
                seen += 1
            assert matcher.accept(token)
    assert seen


TAKEN = json.loads(r"""[
    [{"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [{"type": "tag",
        "begin": "<|call|>f:", "content": {"type": "json_schema",
        "json_schema": {"type": "null"}}, "end": "<|call|>"}]}, {},
        ["so \u0001f:null\u0001 and \u0001f:null\u0001.",
        "so <|call|>f:null<|call|> no"], ["so \u0001g:null\u0001",
        "so <|call|>g:null<|call|>"]],
    [{"type": "tag", "begin": "<x>", "content": {"type": "any_text"}, "end": "</s>"},
        {}, ["<x>a</s>"], ["<x>a"]],
    [{"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
        "begin": "<f=x>", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {"enum": ["x"]},
        "b": {}}, "required": ["a"]}}, "end": "</f>"}, {"type": "tag",
        "begin": "<f=y>", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {"enum": ["y"]},
        "b": {}}, "required": ["a"]}}, "end": "</f>"}, {"type": "tag",
        "begin": "<f=z>", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {"enum": [3]}, "b": {}},
        "required": ["a"]}}, "end": "</f>"}]}, {},
        ["<f=x>{'a':'x','b':[1,{'c':null}]}</f>", "<f=z>{'a':3}</f>"],
        ["<f=x>{'a':'y'}</f>", "<f=y>{'a':'x'}</f>", "<f=z>{'a':'x'}</f>"]],
    [{"type": "tag", "begin": "<", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
        "end": ">"}, {}, ["<{'a':1,'b':1}>"], ["<{'b':1,'a':1}>", "<{'a':1,'c':1}>",
        "<{'b':1}>"]],
    [{"type": "tag", "begin": "<", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        "any_order": true}, "end": ">"}, {}, ["<{'b':1,'a':1}>"], ["<{'a':1,'c':1}>",
        "<{'b':1}>"]],
    [{"type": "tag", "begin": "<", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
        "end": ">"}, {"strict": false}, ["<{'b':1,'a':1}>", "<{'a':1,'c':1}>"],
        ["<{'b':1}>"]],
    [{"type": "tag", "begin": "{", "content": {"type": "json_schema",
        "json_schema": {"items": {"type": "integer"}}}, "end": "}"},
        {"whitespace": "compact"}, ["{{'a':[1,2]}}"], ["{{ 'a' :\n[ 1 ,2 ] }}",
        "{{'a': [1, 2]}}"]],
    [{"type": "tag", "begin": "{", "content": {"type": "json_schema",
        "json_schema": {"items": {"type": "integer"}}}, "end": "}"}, {},
        ["{{'a':[1,2]}}", "{{ 'a' :\n[ 1 ,2 ] }}", "{{'a': [1, 2]}}"], ["{ {'a':1}}",
        "{{'a':1} }", " {{'a':1}}"]],
    [{"type": "tag", "begin": "{", "content": {"type": "json_schema",
        "json_schema": {"items": {"type": "integer"}}}, "end": "}"},
        {"whitespace": "flexible"}, ["{{'a':[1,2]}}", "{{ 'a' :\n[ 1 ,2 ] }}",
        "{'a b'}"], ["{ {'a':1}}", "{{'a':1} }", " {{'a':1}}"]],
    [{"type": "tag", "begin": "{", "content": {"type": "json_schema",
        "json_schema": {"items": {"type": "integer"}}}, "end": "}"},
        {"whitespace": "spaced"}, ["{{'a': [1, 2]}}"], ["{{'a':[1,2]}}",
        "{{ 'a' :\n[ 1 ,2 ] }}", "{{'a': [1,2]}}", "{{'a': [1, 2 ]}}",
        "{{'a': [1, 2]} }"]],
    [{"type": "triggered_tags", "triggers": ["<"], "tags": [{"type": "tag",
        "begin": "<", "content": {"type": "json_schema",
        "json_schema": {"type": "integer"}}, "end": ">"}], "excludes": ["</y>"]}, {},
        ["a<1>", "a"], ["a</", "a<"]]
]""")
"""Forms with options, texts that they take and texts that they do not, with single
quotes. U+0001 stands for a control token."""


@pytest.mark.parametrize(("form", "options", "good", "bad"), TAKEN)
def test_what_is_taken(form, options, good, bad):
    texts = [text.replace("'", '"') for text in good + bad]
    assert taken(compiled(form, **options), texts) == texts[: len(good)]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        (r"a\\/b", r"a\/b"),
        ("a\nb", "a\nb"),
        (r"[/\\]{2}", "/\\"),
        (r"a\\", "a\\"),
        (r"\\\/\n", "\\/\n"),
    ],
)
def test_regexes_with_slashes_and_lines(pattern, text):
    grammar = compiled(tag("<", {"type": "regex", "pattern": pattern}, ">"))
    texts = [f"<{text}>", f"<{text[:-1]}>"]
    assert taken(grammar, texts) == texts[:1]


REFUSED = json.loads(r"""[
    [{"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
        "begin": "<f=", "content": {"type": "json_schema", "json_schema": true},
        "end": "<"}, {"type": "tag", "begin": "<f=g",
        "content": {"type": "json_schema", "json_schema": {"not": {"type": "array",
        "uniqueItems": true}}}, "end": "<"}]},
        "#/format/tags/1/content/json_schema/not/uniqueItems"],
    [{"type": "sequence", "elements": [{"type": "json_schema",
        "json_schema": {"type": "integer"}}, {"type": "const_string",
        "value": "0;"}]}, "JSON before a text"],
    [{"type": "sequence", "elements": [{"type": "json_schema",
        "json_schema": {"type": "integer"}}, {"type": "any_text"}]},
        "JSON before a text"],
    [{"type": "sequence", "elements": [{"type": "regex", "pattern": "[a-z]+"},
        {"type": "const_string", "value": "end"}]}, "the regex"],
    [{"type": "sequence", "elements": [{"type": "or",
        "elements": [{"type": "const_string", "value": "a"}, {"type": "const_string",
        "value": "ab"}]}, {"type": "const_string", "value": "b"}]},
        "'a' next to 'ab'"],
    [{"type": "or", "elements": [{"type": "sequence",
        "elements": [{"type": "const_string", "value": "<a>"}, {"type": "json_schema",
        "json_schema": {"type": "integer"}}]}, {"type": "any_text"}]},
        "free text next to '<a>'"],
    [{"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]+,"},
        {"type": "sequence", "elements": [{"type": "json_schema",
        "json_schema": {"type": "integer"}}, {"type": "const_string",
        "value": ";"}]}]}, "next to"],
    [{"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string",
        "value": "x"}]}, "free text before"],
    [{"type": "star", "content": {"type": "any_text"}}, "free text"],
    [{"type": "star", "content": {"type": "plus", "content": {"type": "const_string",
        "value": "ab"}}}, "several ways"],
    [{"type": "sequence", "elements": [{"type": "star",
        "content": {"type": "const_string", "value": "ab"}}, {"type": "plus",
        "content": {"type": "const_string", "value": "ab"}}]}, "several ways"],
    [{"type": "any_text", "max_chars": 3}, "#/format/max_chars"],
    [{"type": "json_schema", "json_schema": {}, "style": "cohere_xml"}, "cohere_xml"],
    [{"type": "json_schema", "json_schema": {}, "excludes": ["x"]},
        "#/format/excludes"],
    [{"type": "grammar", "grammar": "root ::= \"a\""}, "'grammar'"],
    [{"type": "exclude_token", "exclude_tokens": []}, "'exclude_token'"],
    [{"type": "any_tokens"}, "write any_text"],
    [{"type": "token", "token": "<|call|>"}, "const_string"],
    [{"type": "repeat", "min": 1, "max": 2, "content": {"type": "any_text"}},
        "or a sequence"],
    [{"type": "dispatch"}, "write triggered_tags"],
    [{"type": "token_dispatch"}, "write triggered_tags"],
    [{"type": "token_triggered_tags"}, "write triggered_tags"],
    [{"type": "tag", "begin": {"type": "token", "token": "<|call|>"},
        "content": {"type": "any_text"}, "end": "<|call|>"}, "#/format/begin"],
    [{"type": "json_schema", "json_schema": {}, "max_whitespace_cnt": 2},
        "#/format/max_whitespace_cnt"],
    [{"type": "any_text", "later": 1}, "#/format/later"],
    [{"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
        "begin": "<f=", "content": {"type": "json_schema",
        "json_schema": {"type": "integer"}}, "end": ">"}], "excludes": ["<f="]},
        "excluded text"],
    [{"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
        "begin": "<f=", "content": {"type": "json_schema",
        "json_schema": {"type": "integer"}}, "end": ">"}], "excludes": ["f="]},
        "excluded text"],
    [{"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
        "begin": "<f=", "content": {"type": "json_schema",
        "json_schema": {"type": "integer"}}, "end": ">"}], "excludes": ["="]},
        "excluded text"],
    [{"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
        "begin": "<f=", "content": {"type": "json_schema",
        "json_schema": {"type": "integer"}}, "end": ">"}], "excludes": ["no <f="]},
        "excluded text"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": true, "style": "qwen_xml"}, "end": "\n</f>"},
        "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object"}, "style": "qwen_xml"}, "end": "\n</f>"},
        "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {},
        "additionalProperties": true}, "style": "qwen_xml"}, "end": "\n</f>"},
        "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {}, "minProperties": 1},
        "style": "qwen_xml"}, "end": "\n</f>"}, "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {}, "required": ["a"]},
        "style": "qwen_xml"}, "end": "\n</f>"}, "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {"type": "string",
        "maxLength": 3}}}, "style": "qwen_xml"}, "end": "\n</f>"},
        "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {"type": ["string",
        "null"]}}}, "style": "qwen_xml"}, "end": "\n</f>"},
        "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
        "style": "qwen_xml"}, "end": "\n</f>"}, "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {}}},
        "style": "qwen_xml"}, "end": "\n</f>"}, "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a>b": {"type": "integer"}}},
        "style": "qwen_xml"}, "end": "\n</f>"}, "#/format/content/json_schema"],
    [{"type": "tag", "begin": "<f>\n", "content": {"type": "json_schema",
        "json_schema": {"type": "object",
        "properties": {"n": {"not": {"type": "array", "uniqueItems": true}}}},
        "style": "qwen_xml"}, "end": "\n</f>"},
        "#/format/content/json_schema/properties/n/not/uniqueItems"]
]""")
"""Forms, the last of them what has no one spelling as XML elements, each with what its
refusal says or its place."""


@pytest.mark.parametrize(("form", "says"), REFUSED)
def test_what_is_refused_with_its_reason(form, says):
    with pytest.raises(GuidedError) as caught:
        compiled(form)
    assert says in str(caught.value)


def test_open_objects_have_no_form_in_xml():
    with pytest.raises(GuidedError, match=r"style.*use strict: true"):
        styled("qwen_xml", strict=False)


def test_hundreds_of_tools_are_read_in_a_second():
    """Of a processor: their parts are compared in pairs, once each."""
    tools = [tag(f"<f=tool_{number}>", json_of(True), "</f>") for number in range(300)]
    begin = time.process_time()
    tag_to_lark(OutputSpec.structural_tag({"format": triggered(*tools)}), {})
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole words"])
def test_walks_have_no_dead_ends_and_end_complete(padded):
    compiler = compiler_with_raw(special_vocabulary(padded=padded))
    tokens = compiler.vocabulary.tokens
    named = [tokens.index(name) for name in (b"<tool_call>", b"</tool_call>")]
    described = {"a": {"type": "string", "maxLength": 4}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": described, "required": ["a"]}
    call = tag("<tool_call>\n", json_of(schema), "</tool_call>")
    ways = {"stop_after_first": True, "at_least_one": True}
    form = triggered(call, triggers=("<tool_call>",), **ways)
    grammar = compiled(form, compiler=compiler)
    walker = Walker(compiler)
    for seed in range(15):
        walk = walker.wander(
            grammar, Random(seed), 200, whole=lambda _: True, named=named
        )
        assert (walk.accepted, walk.early, walk.leaks) == (True, [], []), seed


STYLES = {
    "qwen_xml": ("<parameter=KEY>", "</parameter>"),
    "minimax_xml": ('<parameter name="KEY">', "</parameter>"),
    "glm_xml": ("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>"),
    "deepseek_xml": (
        '<｜DSML｜parameter name="KEY" string="RAW">',
        "</｜DSML｜parameter>",
    ),
    "deepseek_v4_1_xml": (
        '<｜DSML｜ parameter name="KEY" string="RAW">',
        "</｜DSML｜ parameter>",
    ),
}
CALLED = json.loads("""{"type": "object", "required": ["n"], "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "unit": {"enum": ["C", "F", "Fx"]},
        "more": {"$ref": "#/$defs/more"}},
    "$defs": {"more": {"type": "object", "properties": {
        "s": {"type": "string"}, "t": {"type": "array", "items": {"type": "integer"}}}}}}""")
TEXTS = ("city", "unit")
RIGHT = json.loads(r"""[[["n", "12"]], [["city", "a <b>\nc"], ["n", "12"]],
    [["city", "x"], ["n", "1"], ["unit", "Fx"], ["more", "{\"s\":\"x\"}"]],
    [["n", "1"], ["more", "{}"]]]""")
WRONG = json.loads(r"""[[], [["city", "x"]], [["n", "1"], ["city", "x"]],
    [["n", "1"], ["n", "1"]], [["n", "1"], ["other", "1"]], [["n", "\"12\""]],
    [["n", "1"], ["unit", "D"]], [["n", "1"], ["more", "{\"s\":1}"]],
    [["n", "1"], ["more", "{\"u\":\"x\"}"]]]""")


def written(style, pairs, end="\n</f>"):
    """A call as models write it; texts are given with their type."""
    begin, close = STYLES[style]
    parts = []
    for key, value in pairs:
        raw = "true" if key in TEXTS else "false"
        parts.append(begin.replace("KEY", key).replace("RAW", raw) + value + close)
    return "<f>\n" + "\n".join(parts) + end


def styled(style, backend="llguidance", end="\n</f>", compiler=COMPILER, **options):
    form = tag("<f>\n", json_of(CALLED, style=style), end)
    return compiled(form, backend, compiler, **options)


@pytest.mark.parametrize("end", ["\n</f>", "</f>"])
@pytest.mark.parametrize("style", STYLES)
def test_properties_as_xml_elements_are_those_of_xgrammar(style, end):
    ours = styled(style, end=end)
    theirs = styled(style, RAW, end=end)
    right = [written(style, pairs, end) for pairs in RIGHT]
    wrong = [written(style, pairs, end) for pairs in WRONG]
    for grammar in (ours, theirs):
        assert taken(grammar, right + wrong) == right
    for seed in range(12):
        text = wandered(ours, Random(seed))
        verdict = follows(COMPILER, ours, text)
        assert verdict[0]
        assert follows(COMPILER, theirs, text) == verdict, text


def wandered(grammar, chance):
    """The text of an output at random, or of its beginning."""
    matcher = start(COMPILER, grammar)
    text = b""
    while len(text) < 250 and not matcher.complete:
        shown = allowed(matcher)
        assert shown, text
        likely = [token for token in shown if token in b'</>parmetvlu_g\n"}1']
        token = chance.choice(likely or [token for token in shown if token < END])
        assert matcher.accept(token)
        text += bytes([token])
    return text.decode(errors="ignore")


@pytest.mark.parametrize("style", STYLES)
def test_values_that_are_json_are_laid_out_as_asked(style):
    value = {"s": "x: y, z", "t": [1, 2]}
    layouts = {"compact": (",", ":"), "spaced": (", ", ": ")}
    texts = {}
    for name, separators in layouts.items():
        more = json.dumps(value, separators=separators)
        texts[name] = written(style, [("n", "12"), ("more", more)])
    for name, text in texts.items():
        assert taken(styled(style, whitespace=name), texts.values()) == [text]


@pytest.mark.parametrize("mark", ["\x01", "｜DSML｜"])
def test_a_control_token_in_the_middle_of_an_end(mark):
    tokens = [*(bytes([byte]) for byte in range(256)), b"</s>", "｜DSML｜".encode()]
    compiler = compiler_of(Vocabulary.from_tokens(tokens, [END], [END + 1]))
    grammar = styled("deepseek_xml", compiler=compiler)
    right = written("deepseek_xml", [("city", "a</b"), ("n", "1")])
    wrong = right.replace("</b</", "</b")
    texts = [text.replace("｜DSML｜", mark) for text in (right, wrong)]
    assert taken(grammar, texts, compiler) == texts[:1]
