"""The page: each token by how many were allowed, everything escaped."""

import re

import pytest

import guided_plugin as gp
from guided_plugin.diagnose.page import picture, steps_of, tokens_of
from guided_plugin.errors import VocabularyError

SPEC = gp.OutputSpec.json_schema(
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
)


def test_steps_tell_what_was_allowed(byte_compiler, byte_stop):
    steps = steps_of(byte_compiler, SPEC, [*b'{"a":"x"}', byte_stop])
    assert all(step.fits for step in steps)
    forced = "".join(step.text for step in steps if step.forced)
    assert forced == '{"a":"}</s>'
    assert steps[6].allowed > 90


def test_what_follows_a_refused_token_is_not_looked_at(byte_compiler):
    steps = steps_of(byte_compiler, SPEC, [*b"{x}", 10_000, -1])
    assert [(step.fits, bool(step.allowed)) for step in steps] == [
        (True, True),
        (False, True),
        (False, False),
        (False, False),
        (False, False),
    ]
    page = picture(steps, SPEC, byte_compiler.vocabulary.size)
    assert "the grammar refuses token 1" in page
    assert page.count('class="refused" title') == 4
    assert "&lt;token 10000&gt;" in page


def test_a_token_that_is_out_of_range_is_refused(byte_compiler):
    assert [step.fits for step in steps_of(byte_compiler, SPEC, [-5])] == [False]


def test_the_page_is_escaped_and_needs_nothing_else(byte_compiler):
    spec = gp.OutputSpec.regex(r"<script>alert\(1\)</script>[\s\S]*")
    text = "<script>alert(1)</script>\u202e\x1b[31m\n&\"'"
    steps = steps_of(byte_compiler, spec, text.encode())
    assert all(step.fits for step in steps)
    page = picture(steps, spec, byte_compiler.vocabulary.size)
    assert "<script" not in page
    assert not {"\u202e", "\x1b"} & set(page)
    assert "&#8629;" in page
    assert not re.search(r"(?:src|href|url)\s*[=(]", page)
    assert "prefers-color-scheme: dark" in page


def test_a_character_of_several_tokens_is_shown(byte_compiler):
    steps = steps_of(byte_compiler, gp.OutputSpec.regex(".+"), "日".encode())
    assert [step.text for step in steps] == ["\\xe6", "\\x97", "\\xa5"]


def test_tokens_of_a_text(demo_vocabulary, byte_compiler):
    compiler = gp.GrammarCompiler(demo_vocabulary)
    tokens = tokens_of(compiler, '{"a":"x"}')
    assert b"".join(demo_vocabulary.tokens[token] for token in tokens) == b'{"a":"x"}'
    stop = demo_vocabulary.tokens[demo_vocabulary.stop_token_ids[0]].decode()
    control = sorted(demo_vocabulary.special_ids - {*demo_vocabulary.stop_token_ids})
    assert stop
    if control:
        assert tokens_of(compiler, demo_vocabulary.tokens[control[0]].decode()) == [control[0]]
    with pytest.raises(VocabularyError):
        tokens_of(byte_compiler, "a")
