"""Structural tags of every form, with texts that take them apart."""

from __future__ import annotations

from random import Random
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.vocabulary import Vocabulary

__all__ = [
    "CALL",
    "FORMS",
    "PIECES",
    "VOCABULARY",
    "const",
    "follows",
    "grown",
    "json_of",
    "tag",
    "tokens_of",
    "triggered",
]

CALL = "<|call|>"
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", CALL.encode(), b"<|other|>"],
    [256],
    [257, 258],
)
_CONTROL = "\x01"
"""Stands for the control token in texts."""


def json_of(schema: Any, **options: Any) -> dict[str, Any]:
    """A schema inside a tag."""
    return {"type": "json_schema", "json_schema": schema, **options}


def tag(begin: Any, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


def _separated(*tags: Any, separator: str, **options: Any) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        **options,
    }


def triggered(
    *tags: Any, triggers: tuple[str, ...] = ("<f=",), **options: Any
) -> dict[str, Any]:
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        **options,
    }


_OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
_A = tag("<f=a>", json_of(_OBJECT), "</f>")
_B = tag("<f=b>", json_of({"type": "string"}), "</f>")
_ANY = {"type": "any_text"}
_THINK = tag("<think>", _ANY, "</think>")
_NOT_AGAIN = {"excludes": ["<think>", "</think>"]}
_DIGITS = {"type": "regex", "pattern": "[0-9]+"}
_NUMBER = json_of({"type": "integer"})

FORMS: dict[str, dict[str, Any]] = {
    "any text": _ANY,
    "any text but": {"type": "any_text", "excludes": ["bad", "<x>"]},
    "a text": const("hello"),
    "texts": _sequence(const("a"), const("b")),
    "one of texts": _either(const("ab"), const("cd"), const("ab")),
    "a text or a longer one": _either(const("a"), const("ab")),
    "JSON": json_of(_OBJECT),
    "one of two schemas": _either(_NUMBER, json_of(_OBJECT)),
    "a tag": _A,
    "triggered": triggered(_A, _B),
    "at least one": triggered(_A, _B, at_least_one=True),
    "at most one": triggered(_A, _B, stop_after_first=True),
    "one": triggered(_A, _B, at_least_one=True, stop_after_first=True),
    "excluding": triggered(_A, _B, excludes=["bad"]),
    "two triggers": triggered(_A, tag("<x>", _NUMBER, "</x>"), triggers=("<f=", "<x>")),
    "after thinking": _sequence(_THINK, triggered(_A, _B, **_NOT_AGAIN)),
    "after thinking or not": _sequence(
        {"type": "optional", "content": _THINK}, triggered(_A, _B, **_NOT_AGAIN)
    ),
    "separated by lines": _separated(_A, _B, separator="\n"),
    "separated by nothing": _separated(_A, _B, separator="", at_least_one=True),
    "one of those separated": _separated(_A, _B, separator=",", stop_after_first=True),
    "two ends": tag("<x>", _ANY, ["</x>", "</y>"]),
    "an end that begins another": tag("<x>", _ANY, ["</x>", "</x></y>"]),
    "no end": tag("<x>", _NUMBER, ""),
    "triggered inside": tag("<x>", triggered(_A, _B), "</x>"),
    "a list inside": triggered(
        tag("<t>\n", _separated(_A, _B, separator="", at_least_one=True), "</t>"), triggers=("<t>",)
    ),
    "plus": {"type": "plus", "content": _A},
    "star": {"type": "star", "content": _B},
    "regexes": _sequence(_DIGITS, const("x"), {"type": "regex", "pattern": "[a-z]*"}),
    "a number in a call": tag("<f=a>", _sequence(_DIGITS, const("<"), json_of(_OBJECT)), "</f>"),
    "text up to its end": _sequence({"type": "any_text", "excludes": ["</t"]}, const("</t>"), const("z")),
    "begins inside JSON": triggered(
        tag('{"name": "f", "parameters": ', json_of(_OBJECT), "}"), triggers=('{"name": ',)
    ),
    "an end that borders itself": tag("<aa", _ANY, "aa"),
    "a control token": tag(CALL, json_of(_OBJECT), CALL),
    "triggered by a control token": triggered(tag(f"{CALL}f:", json_of(_OBJECT), CALL), triggers=(CALL,)),
    "a trigger inside a control token": triggered(tag(f"{CALL}f:", _NUMBER, CALL), triggers=("<|ca",)),
    "a control token inside a trigger": triggered(
        tag(f"<{CALL}f:", _NUMBER, f"</{CALL}>"), tag("<g>", _NUMBER, ";"), triggers=(f"<{CALL}", "<g")
    ),
    "text up to a control token": tag("<x>", _ANY, CALL),
}  # fmt: skip

PIECES = [
    *("<f=", "<f=a>", "<f=b>", '{"a":1}', '"s"', '{"a":', "1", "}", "</f>", "<think>", "</think>", "<x>"),
    *("</x>", "</y>", "<t>\n", "</t>", "<t>", "a", "b", "bad", "hello", "ab", "cd", ",", "\n", "<", "</"),
    *("x", "z", "<g=", ";", "aa", "<aa", '{"name": "f", "parameters": ', _CONTROL, f"{_CONTROL}f:", "!", "é"),
    *("<f", CALL, "f:"),
]  # fmt: skip


def tokens_of(text: str) -> list[int]:
    return [257 if byte == 1 else byte for byte in text.encode()]


def follows(
    compiler: GrammarCompiler, grammar: Grammar, text: str
) -> tuple[bool, bool]:
    """Whether a grammar takes a text as a beginning, and as a whole."""
    matcher = compiler.backend(grammar.backend).start(
        grammar, VOCABULARY.stop_token_ids
    )
    if not all(matcher.accept(token) for token in tokens_of(text)):
        return False, False
    return True, matcher.complete


def grown(
    compiler: GrammarCompiler, grammars: tuple[Grammar, Grammar], name: str, count: int
) -> list[tuple[str, tuple[bool, bool], tuple[bool, bool]]]:
    """Texts that grow by pieces while any of two grammars takes them, with what both
    say."""
    chance = Random(name)
    found = []
    pool = [""]
    while len(found) < count:
        base = chance.choice(pool[-40:] if chance.random() < 0.7 else pool)
        text = base + chance.choice(PIECES)
        if len(text) > 90:
            continue
        ours, theirs = (follows(compiler, grammar, text) for grammar in grammars)
        found.append((text, ours, theirs))
        if ours[0] or theirs[0]:
            pool.append(text)
    return found
