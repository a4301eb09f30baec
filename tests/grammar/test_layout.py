"""The whitespace that outputs have at each kind of place, learnt and said again."""

from __future__ import annotations

import json
from itertools import takewhile
from random import Random

import pytest
from stopping import special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.layout import Layouts
from guided_plugin.grammar.learnt_drafts import LearntDrafts
from guided_plugin.grammar.outline import Outline, words_of
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

LAYOUTS = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "two": {"indent": 2},
    "four": {"indent": 4},
    "tabs": {"indent": "\t"},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "alpha": {"type": "integer"},
        "beta": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"kind": {"const": "x"}, "name": {"type": "string"}},
                "required": ["kind", "name"],
            },
        },
        "gamma": {
            "type": "object",
            "properties": {"z": {"type": "boolean"}},
            "required": ["z"],
        },
    },
    "required": ["alpha", "beta", "gamma"],
}


def a_value(random, depth=0):
    kinds = (
        ["string", "number"]
        if depth > 3
        else ["string", "number", "array", "object", "object"]
    )
    match random.choice(kinds):
        case "string":
            return random.choice(
                ["", "a, b: {c}", 'say "x", y', "back\\slash", "line\nend", "[1,  2]"]
            )
        case "number":
            return random.choice([0, -1.5, 10, True, None])
        case "array":
            return [a_value(random, depth + 1) for _ in range(random.randrange(1, 4))]
    return {f"k{n}": a_value(random, depth + 1) for n in range(random.randrange(1, 4))}


def cut(random, text):
    """The text in pieces, as tokens cut it."""
    at = 0
    while at < len(text):
        size = random.choice([1, 1, 2, 3, 7])
        yield text[at : at + size]
        at += size


class Output:
    """One output, whose whitespace is learnt or told."""

    def __init__(self, layouts):
        self.layouts = layouts
        self.outline = Outline(words_of("{}", "json_object"), 0)

    def write(self, text):
        step = self.outline.after(text)
        self.outline = step.place
        for gap in step.gaps:
            self.layouts.learn(gap)

    def next(self, following):
        return self.layouts.next(self.outline, following.__contains__)


@pytest.mark.parametrize("name", LAYOUTS)
def test_whitespace_is_told_as_it_was_written(name):
    """Before each part of a document, the layout tells just the whitespace that the
    document has there."""
    random = Random(name)
    layouts = Layouts()
    for _ in range(30):
        Output(layouts).write(json.dumps(a_value(random), **LAYOUTS[name]).encode())
    told = wrong = 0
    for _ in range(30):
        rest = json.dumps({"a": a_value(random)}, **LAYOUTS[name]).encode()
        output = Output(layouts)
        for piece in cut(random, rest):
            following = rest.lstrip(b" \t\n\r")
            said = output.next(following[:1]) if following else b""
            if said:
                told += 1
                wrong += said != rest[: len(rest) - len(following) + 1]
            output.write(piece)
            rest = rest[len(piece) :]
    assert told > 200
    assert not wrong


def test_a_layout_is_forgotten_when_outputs_change():
    layouts = Layouts()
    for text, times, spaces in ((b'{"a":  1}', 1000, b"  "), (b'{"a": 1}', 16, b" ")):
        for _ in range(times):
            Output(layouts).write(text)
        output = Output(layouts)
        output.write(b'{"a":')
        assert output.next(b"1") == spaces + b"1"


def test_nothing_is_told_inside_a_string():
    output = Output(Layouts())
    output.write(b'{"a": 1, "b, ')
    assert output.next(b'"') == b""
    output.write(b'c": {')
    assert output.next(b'"') == b'"'  # as behind the bracket before


@pytest.fixture(scope="module")
def compiler():
    config = GuidedConfig(threads=1, isolate_compiles=False)
    return GrammarCompiler(
        special_vocabulary(padded=True),
        config=config,
        plugins=Plugins(entry_points=False),
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_learnt_layout_forces_as_much_as_a_fixed_one(compiler, name):
    """With `flexible` whitespace, once a document of this layout was written, no step
    more than `spaced`."""
    vocabulary = compiler.vocabulary
    learnt = LearntDrafts(vocabulary, ForcedTokens(vocabulary), 64)

    def steps(whitespace, text):
        spec = OutputSpec.json_schema(SCHEMA, whitespace=whitespace)
        grammar = compiler.compile(spec)
        table = GrammarTable(vocabulary)
        table.add(0, "", spec, grammar, compiler.backend(grammar.backend))
        at = count = 0
        while at < len(text):
            drafts = learnt.look(0, table.requests[0]).tokens
            offered = b"".join(vocabulary.text_tokens[token] for token in drafts)
            matches = takewhile(
                lambda pair: pair[0] == pair[1], zip(offered, text[at:], strict=False)
            )
            step = text[at : at + len(list(matches)) + 1]
            table.accept_more((0,), [[token] for token in step])
            at += len(step)
            count += 1
        learnt.look(0, table.requests[0])
        return count

    value = {
        "alpha": 1,
        "beta": [{"kind": "x", "name": 'so, is: "it"'}],
        "gamma": {"z": True},
    }
    text = json.dumps(value, **LAYOUTS[name]).encode()
    steps("flexible", text)
    assert steps("flexible", text) <= steps("spaced", json.dumps(value).encode()) + 1
