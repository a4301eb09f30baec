"""The whitespace that outputs have at each kind of place, learnt and said again."""

from __future__ import annotations

import json
from random import Random

import pytest
from stopping import special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.layout import Layouts, OutputLayout, Part, Place, Whitespace
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


@pytest.mark.parametrize("name", LAYOUTS)
def test_whitespace_is_told_as_it_was_written(name):
    """Before each part of a document, the layout tells just the whitespace that the
    document has there."""
    random = Random(name)
    layouts = Layouts()
    for _ in range(30):
        OutputLayout(layouts).feed(
            json.dumps(a_value(random), **LAYOUTS[name]).encode(), learn=True
        )
    told = wrong = 0
    for _ in range(30):
        text = json.dumps({"a": a_value(random)}, **LAYOUTS[name]).encode()
        output = OutputLayout(layouts)
        fed = 0
        for piece in cut(random, text):
            rest = text[fed:].lstrip(b" \t\n\r")[:1]
            expected = text[fed:][
                : len(text[fed:]) - len(text[fed:].lstrip(b" \t\n\r"))
            ]
            said = output.next(rest.__contains__) if rest else b""
            if said:
                told += 1
                wrong += said != expected + rest
            output.feed(piece, learn=False)
            fed += len(piece)
    assert told > 200
    assert not wrong


def test_a_layout_is_forgotten_when_outputs_change():
    layouts = Layouts()
    colon = Place(Part.COLON, Part.VALUE, broken=False)
    for _ in range(1000):
        OutputLayout(layouts).feed(b'{"a":  1}', learn=True)
    assert layouts.at(colon) == Whitespace(b"  ")
    for _ in range(16):
        OutputLayout(layouts).feed(b'{"a": 1}', learn=True)
    assert layouts.at(colon) == Whitespace(b" ")


def test_nothing_is_learnt_from_a_copy_or_told_inside_a_string():
    layouts = Layouts()
    output = OutputLayout(layouts)
    output.copy().feed(b'{"a": 1}', learn=False)
    assert layouts.at(Place(Part.COLON, Part.VALUE, broken=False)) is None
    output.feed(b'{"a": 1, "b, ', learn=True)
    assert output.next(b'"'.__contains__) == b""
    output.feed(b'c": {', learn=True)
    assert output.copy().next(b'"'.__contains__) == b'"'  # as behind the bracket before


def test_text_around_json_ends_strings_at_its_lines_ends():
    """A quote in free text begins no string that hides the layout of what follows."""
    layouts = Layouts()
    OutputLayout(layouts).feed(b'He said "no.\n<call>\n{"a": 1, "b": 2}', learn=True)
    assert layouts.at(Place(Part.COMMA, Part.VALUE, broken=False)) == Whitespace(b" ")


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
    forced = ForcedTokens(compiler.vocabulary)

    def steps(whitespace, text, layouts):
        grammar = compiler.compile(
            OutputSpec.json_schema(SCHEMA, whitespace=whitespace)
        )
        matcher = compiler.backend(grammar.backend).start(
            grammar, compiler.vocabulary.stop_token_ids
        )
        output = OutputLayout(layouts)
        at = count = 0
        while at < len(text):
            layout = output if whitespace == "flexible" else None
            drafts = forced.behind(matcher, 64, layout=layout)
            offered = b"".join(
                compiler.vocabulary.text_tokens[token] for token in drafts
            )
            assert text[at:].startswith(offered[: len(text) - at])
            step = text[at : at + len(offered) + 1]
            assert matcher.accept_text(step)
            output.feed(step, learn=True)
            at += len(step)
            count += 1
        return count

    layouts = Layouts()
    value = {
        "alpha": 1,
        "beta": [{"kind": "x", "name": 'so, is: "it"'}],
        "gamma": {"z": True},
    }
    text = json.dumps(value, **LAYOUTS[name]).encode()
    OutputLayout(layouts).feed(text, learn=True)
    spaced = steps("spaced", json.dumps(value).encode(), Layouts())
    assert steps("flexible", text, layouts) <= spaced + 1
