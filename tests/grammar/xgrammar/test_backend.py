"""The xgrammar backend: what each kind of spec accepts, and what is refused instead of ignored."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from xgrammar_specs import CALL, LEGACY_CALL, PERSON, accepts, allowed

from guided_plugin.errors import GrammarError
from guided_plugin.spec import OutputSpec

LANGUAGES: list[tuple[str, OutputSpec, list[str], list[str]]] = [
    (
        "json_schema",
        OutputSpec.json_schema(PERSON),
        ['{"name":"Ada"}', '{"name":"","age":-3}', '{"name":"é\\n\\u00e9"}'],
        ["", "{}", '{"age":1}', '{"name":1}', '{"name":"a","age":1.5}', '{"name":"a"', '{"name":"a"}}'],
    ),
    (
        "json_object",
        OutputSpec.json_object(),
        ["{}", '{"a":1}', '{"a":[1,null,{"b":[[]]}],"c":{"d":"x"}}', '{"":-1.5e+9}'],
        ["[]", "1", "", '{"a":}', '{"a":1,}', "{'a':1}", '{"a":01}'],
    ),
    (
        "regex",
        OutputSpec.regex(r"[ab]{1,3}c?|\d+"),
        ["a", "abbc", "bab", "007"],
        ["", "c", "abab", "a1", "1c"],
    ),
    ("anchored regex", OutputSpec.regex("^ab$"), ["ab"], ["", "a", "abb", "^ab$"]),
    (
        "choice",
        OutputSpec.choice(["yes", "no", "note"]),
        ["yes", "no", "note"],
        ["", "ye", "not", "yesno", "YES"],
    ),
    (
        "ebnf",
        OutputSpec.grammar('root ::= "(" root ")" | [0-9]+'),
        ["7", "((42))"],
        ["", "()", "((1)", "(1))"],
    ),
    (
        "lark",
        OutputSpec.grammar('start: "a"+ tail?\ntail: "b" | "c"', syntax="lark"),
        ["a", "aaab", "ac"],
        ["", "b", "abc"],
    ),
    (
        "structural_tag",
        OutputSpec.structural_tag({"format": CALL}),
        [
            "",
            "plain {text}",
            'so: <call>{"name":"x"}</call>',
            '<call>{"name":"x"}</call> and <call>{"name":"y"}</call>',
        ],
        ["<call>", '<call>{"nam', "<call>x</call>", '<call>{"name":"x"}'],
    ),
    (
        "older structural_tag",
        OutputSpec.structural_tag(LEGACY_CALL),
        ["", "plain {text}", 'so: <call>{"name":"x","age":2}</call>'],
        ["<call>", "<call>x</call>", '<call>{"name":"x"}'],
    ),
]


class TestKinds:
    @pytest.mark.parametrize(
        ("spec", "good", "bad"), [case[1:] for case in LANGUAGES], ids=[case[0] for case in LANGUAGES]
    )
    def test_accepts_its_language_and_nothing_else(self, byte_backend, spec, good, bad):
        assert [text for text in good if not accepts(byte_backend, spec, text)] == []
        assert [text for text in bad if accepts(byte_backend, spec, text)] == []

    def test_a_grammar_tells_its_size_backend_and_spec(self, byte_backend):
        spec = OutputSpec.regex("a")
        grammar = byte_backend.compile(spec)
        assert (grammar.spec, grammar.backend) == (spec, "xgrammar")
        assert grammar.size_bytes > 0
        assert grammar.seconds > 0


class TestChoice:
    TEXTS = (
        "",
        'say "hi"',
        "back\\slash \\n \\u0041",
        "tab\tnewline\nreturn\r",
        "\x00\x01\x1f\x7f",
        "é ß 世界",
        "\N{WAVING HAND SIGN}\U0010ffff",
        "[a-z]* | root ::= x",
    )

    def test_every_text_comes_out_as_it_went_in(self, byte_backend):
        spec = OutputSpec.choice(self.TEXTS)
        assert [text for text in self.TEXTS if not accepts(byte_backend, spec, text)] == []

    @pytest.mark.parametrize("text", ["back\\slash \n A", 'say \\"hi\\"', "tab\\t", "x", "é ß 世"])
    def test_escapes_are_not_read_twice(self, byte_backend, text):
        assert not accepts(byte_backend, OutputSpec.choice(self.TEXTS), text)

    def test_only_the_empty_text(self, byte_backend, byte_stop):
        matcher = byte_backend.start(byte_backend.compile(OutputSpec.choice([""])), (byte_stop,))
        assert matcher.complete
        assert allowed(byte_backend, matcher) == {byte_stop}

    def test_a_lone_surrogate_is_named(self, byte_backend):
        with pytest.raises(GrammarError, match=r"choice 'a\\ud800': has a lone surrogate"):
            byte_backend.compile(OutputSpec.choice(["fine", "a\ud800"]))


class TestJson:
    @pytest.mark.parametrize("text", ['{"name":"a","age":1}', '{"name":"a"}'])
    @pytest.mark.parametrize("whitespace", ["compact", "flexible"])
    def test_no_whitespace_always_fits(self, byte_backend, whitespace, text):
        assert accepts(byte_backend, OutputSpec.json_schema(PERSON, whitespace=whitespace), text)

    @pytest.mark.parametrize(
        "text",
        ['{"name": "a"}', '{ "name":"a"}', '{"name":"a" }', '{"name":"a",\n\t"age":1}', '{"name" :"a"}'],
    )
    def test_whitespace_between_tokens_is_for_flexible_only(self, byte_backend, text):
        assert not accepts(byte_backend, OutputSpec.json_schema(PERSON), text)
        assert accepts(byte_backend, OutputSpec.json_schema(PERSON, whitespace="flexible"), text)

    @pytest.mark.parametrize("text", ['{"a":[1, 2]}', '{"a":{"b":1, "c":2}}', '{"a":1, "b":2}', '{"a": 1}'])
    def test_any_object_is_compact_at_every_depth(self, byte_backend, text):
        assert not accepts(byte_backend, OutputSpec.json_object(), text)
        assert accepts(byte_backend, OutputSpec.json_object(), text.replace(" ", ""))
        assert accepts(byte_backend, OutputSpec.json_object(whitespace="flexible"), text)

    def test_strict_closes_objects_and_not_strict_leaves_them_open(self, byte_backend):
        text = '{"name":"a","more":[1]}'
        assert not accepts(byte_backend, OutputSpec.json_schema(PERSON), text)
        assert accepts(byte_backend, OutputSpec.json_schema(PERSON, strict=False), text)

    def test_strict_leaves_open_what_the_schema_opens(self, byte_backend):
        schema = {**PERSON, "additionalProperties": {"type": "boolean"}}
        assert accepts(byte_backend, OutputSpec.json_schema(schema), '{"name":"a","more":true}')
        assert not accepts(byte_backend, OutputSpec.json_schema(schema), '{"name":"a","more":1}')

    @pytest.mark.parametrize("value", [None, True, -7, 2.5, 'q"\\ é\n\x01', [1, [2]], {"k": {"l": []}}])
    @pytest.mark.parametrize("keyword", ["const", "enum"])
    def test_fixed_values(self, byte_backend, keyword, value):
        schema = {keyword: [value] if keyword == "enum" else value}
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        assert accepts(byte_backend, OutputSpec.json_schema(schema), text)
        assert not accepts(byte_backend, OutputSpec.json_schema(schema), "false")

    @pytest.mark.parametrize(
        ("schema", "good", "bad"),
        [
            ({"type": "integer", "minimum": -3, "maximum": 12}, "-3 0 9 12", "-4 13 1.5 00"),
            ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, "1 2", "0 3"),
            ({"type": "number", "minimum": -1.5, "maximum": 2}, "-1.5 0 1.99 2", "-1.6 2.1 3"),
            ({"type": "integer", "multipleOf": 5}, "0 5 -10 15", "1 3 12"),
            ({"type": ["integer", "null"]}, "1 null", '"a" 1.5 true'),
            ({"items": {"const": 1}, "type": "array", "minItems": 1, "maxItems": 2}, "[1] [1,1]", "[] [1,2]"),
            ({"type": "string", "minLength": 1, "maxLength": 2}, '"é" "éé"', '"" "éée"'),
            ({"type": "string", "pattern": "^[a-c]{2}$"}, '"ab" "cc"', '"a" "abc" "ad"'),
            ({"anyOf": [{"const": 1}, {"type": "array", "items": {"const": 2}}]}, "1 [] [2,2]", "2 [1]"),
            ({"type": "array", "items": {"$ref": "#"}}, "[] [[],[[]]]", "[1] ]"),
        ],
        ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
    )  # fmt: skip
    def test_keywords(self, byte_backend, schema, good, bad):
        spec = OutputSpec.json_schema(schema)
        assert [text for text in good.split() if not accepts(byte_backend, spec, text)] == []
        assert [text for text in bad.split() if accepts(byte_backend, spec, text)] == []

    @pytest.mark.parametrize("text", [b'"\n"', b'"\x00"', b'"\xff"', b'"\\x"', b'"\\u12"', b'"a"b"'])
    def test_strings_hold_no_raw_control_characters_bad_escapes_or_bad_utf8(self, byte_backend, text):
        assert not accepts(byte_backend, OutputSpec.json_schema({"type": "string"}), text)

    @pytest.mark.parametrize("whitespace", ["compact", "flexible"])
    @pytest.mark.parametrize("bounds", [{"minLength": 1}, {"maxLength": 2}, {"minLength": 1, "maxLength": 2}])
    # Bounds of the former become a pattern, those of the latter stay.
    @pytest.mark.parametrize("kind", ["string", ["string", "null"]])
    def test_strings_with_length_bounds_are_json_too(self, byte_backend, kind, bounds, whitespace):
        schema = {"type": "array", "items": {"type": kind, **bounds}, "minItems": 1}
        spec = OutputSpec.json_schema(schema, whitespace=whitespace)
        good, bad = ["a", "é", " ", "\x7f"], [*map(chr, range(32)), '"', "\\"]
        assert [text for text in good if not accepts(byte_backend, spec, f'["{text}"]')] == []
        assert [text for text in bad if accepts(byte_backend, spec, f'["{text}"]')] == []

    def test_length_bounds_change_no_other_text_of_the_schema(self, byte_backend):
        # These are what the rule for bounded strings looks like inside a compiled grammar.
        texts = [r"[^\"\\\r\n]", '[^"\\\r\n]', r"[^\0-\x1f\"\\\r\n]"]
        schema = {
            "anyOf": [
                {"enum": texts},
                {
                    "type": "object",
                    "properties": {text: {"type": ["string", "null"], "maxLength": 1} for text in texts},
                },
            ]
        }
        spec = OutputSpec.json_schema(schema)
        for text in texts:
            written = json.dumps(text)
            assert accepts(byte_backend, spec, written)
            assert accepts(byte_backend, spec, f'{{{written}:"a"}}')

    @pytest.mark.parametrize("pattern", ["^[^a]$", "^.$", r"^\S$", r"^\W$", '^x"[b-z]$', '^["b]$'])
    def test_patterns_let_nothing_into_a_string_that_json_must_escape(self, byte_backend, pattern):
        spec = OutputSpec.json_schema({"type": "string", "pattern": pattern})
        raw = [*map(chr, range(32)), '"', "\\"]
        before = ["", r"x\""]
        assert [c for c in raw for start in before if accepts(byte_backend, spec, f'"{start}{c}"')] == []

    @pytest.mark.parametrize(
        ("pattern", "good", "bad"),
        [
            ("^é[^a]$", ["éb", "éé", "é\N{WAVING HAND SIGN}"], ["b", "éa", 'é"', "é\\", "é\n"]),
            ("^[^é]$", ["b", "ß", "\N{WAVING HAND SIGN}"], ["é", '"', "\\", "\x01", ""]),
            ("^[é-ü]$", ["é", "ü"], ["e", "ÿ"]),
            ("^\\\\éß$", ["\\\\éß"], ["éß", "\\\\é\\ß"]),
            ("^[\U0001f600-\U0001f602]+$", ["\U0001f601\U0001f602"], ["\U0001f603", "a"]),
        ],
    )
    def test_patterns_beyond_ascii(self, byte_backend, pattern, good, bad):
        spec = OutputSpec.json_schema({"type": "string", "pattern": pattern})
        assert [text for text in good if not accepts(byte_backend, spec, f'"{text}"')] == []
        assert [text for text in bad if accepts(byte_backend, spec, f'"{text}"')] == []

    @pytest.mark.parametrize(
        ("pattern", "good", "bad"),
        [
            ('^"[^a]$', ['"b', '"\n', '""'], ['"a', "bb"]),
            (r"^\\.$", ["\\a", "\\\\", '\\"'], ["a", "\\", "\\\n"]),
            (r"^\n\W$", ["\n.", "\n\x1f"], ["n.", "\na"]),
            (r"^a[\t\n]?$", ["a", "a\t", "a\n"], ["at", "a\r"]),
            (r"^(?:ab\n|cd)$", ["ab\n", "cd"], ["ab", "abn"]),
        ],
    )
    def test_characters_that_json_escapes(self, byte_backend, pattern, good, bad):
        spec = OutputSpec.json_schema({"type": "string", "pattern": pattern})
        assert [text for text in good if not accepts(byte_backend, spec, json.dumps(text))] == []
        assert [text for text in bad if accepts(byte_backend, spec, json.dumps(text))] == []

    @pytest.mark.parametrize(
        ("pattern", "longest"),
        [
            ("^(?:a|a{0,2})$", 2),
            ("^(?:a{0,2}|a)$", 2),
            ("^(?:a|a(?:a|))$", 2),
            ("^(?:|a{1,2}|[ab])$", 2),
            ("^(?:(?:a|b){0,2}|[ab])$", 2),
            ("^(?:a{2}|a{3}|a)$", 3),
        ],
    )
    def test_alternatives_that_begin_alike(self, byte_backend, pattern, longest):
        spec = OutputSpec.json_schema({"type": "string", "pattern": pattern})
        taken = [n for n in range(1, 7) if accepts(byte_backend, spec, f'"{"a" * n}"')]
        assert taken == list(range(1, longest + 1))

    @pytest.mark.parametrize(
        ("pattern", "good", "bad"),
        [
            (r"[\x60b]", "`b", "a"),
            (r"\s", "\ufeff\u3000\n", "a"),
            (r"\w", "a_9", "é"),
            (".", "aé\x85", "\n\u2028"),
            (r"\p{Lu}", "AÉ", "a"),
            (r"[^\p{L}]", "1", "aé"),
            ("[^]", "a\n", ""),
            ("^a$", "a", "b"),
            (r"\ud83d\ude00", "😀", "a"),
        ],
    )
    def test_a_regex_means_what_the_dialect_says(self, byte_backend, pattern, good, bad):
        spec = OutputSpec.regex(pattern)
        assert [char for char in good if not accepts(byte_backend, spec, char)] == []
        assert [char for char in bad if accepts(byte_backend, spec, char)] == []

    def test_a_quote_in_a_pattern_comes_out_escaped(self, byte_backend):
        spec = OutputSpec.json_schema({"type": "string", "pattern": r'^x"[b-z]\.\\$'})
        assert accepts(byte_backend, spec, json.dumps('x"b.\\'))
        assert not accepts(byte_backend, spec, '"x"b.\\"')

    @pytest.mark.parametrize(
        ("pattern", "good", "bad"),
        [
            ('^"[^a]$', ['"b', '""', '"\n'], ['"a', "bb", '"']),
            (r"^\\.$", ["\\a", '\\"'], ["a", "\\", "\\\n"]),
            (r'^"\S$', ['"x', '""'], ['"\ufeff', '" ', '"\n']),
            ('^a"[ -~]$', ['a" ', 'a""', 'a"\\'], ['a"\x7f', 'a"\n']),
            (r"^\n\W$", ["\n\n", '\n"', "\n\u1234"], ["\na", "\n_", "n\n"]),
            (r'^["\\/\n\0]{1,2}$', ['"', "\\/", "\n\0"], ["a", "", "\1"]),
        ],
    )
    def test_classes_hold_what_is_written_as_escapes(self, byte_backend, pattern, good, bad):
        spec = OutputSpec.json_schema({"type": "string", "pattern": pattern})
        texts = [json.dumps(text, ensure_ascii=False) for text in (*good, *bad)]
        assert [text for text in texts if accepts(byte_backend, spec, text)] == texts[: len(good)]
        # Raw, they are no JSON.
        assert not any(accepts(byte_backend, spec, f'"{text}"') for text in good if not text.isprintable())


ASKS_FOR_CUDA = """
import os
import torch

asked = []
torch.cuda.is_available = lambda: bool(asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")))
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary

XGrammarBackend(Vocabulary.from_tokens([b"a", b"</s>"], [1]), GuidedConfig())
print(asked, os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
"""


@pytest.mark.parametrize("before", [None, "0"])
def test_loading_xgrammar_leaves_cuda_to_processes_that_are_forked_later(before):
    """torch.cuda.is_available takes it from them, unless the variable is 1: vLLM's engine would not start."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    environment = {key: value for key, value in os.environ.items() if key != name}
    if before is not None:
        environment[name] = before
    done = subprocess.run(
        [sys.executable, "-c", ASKS_FOR_CUDA], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"['1'] {before}"


LOADED_TWICE = """
import os
import threading

from guided_plugin.grammar.xgrammar import backend

both = threading.Barrier(4)

def load():
    both.wait()
    found.append(backend._loaded().name)

found = []
threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found, os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
"""


def test_several_threads_may_load_xgrammar_at_the_same_time(tmp_path):
    """Each of them changes the environment, and puts it back."""
    (tmp_path / "xgrammar.py").write_text("import time\ntime.sleep(0.3)\nname = 'loaded'\n")
    environment = {key: value for key, value in os.environ.items() if "NVML_BASED" not in key}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", LOADED_TWICE], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout.strip()) == ("", f"{['loaded'] * 4} None")
