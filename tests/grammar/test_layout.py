"""The whitespace that outputs have at each kind of place, learnt and said again."""

import json
from pathlib import Path
from random import Random

import pytest

from guided_plugin.grammar.layout import Layouts
from guided_plugin.grammar.outline import Outline, words_of

TABLES = json.loads(Path(__file__).with_name("learnt_drafts.json").read_bytes())
LAYOUTS = TABLES["layouts"]
TEXTS = ["", "a, b: {c}", 'say "x", y', "back\\slash", "line\nend", "[1,  2]"]
SCALARS = [*TEXTS, 0, -1.5, 10, True, None]


def a_value(random, depth=0):
    if depth > 3 or random.random() < 0.4:
        return random.choice(SCALARS)
    parts = [a_value(random, depth + 1) for _ in range(random.randrange(1, 4))]
    if random.random() < 0.4:
        return parts
    return {f"k{number}": part for number, part in enumerate(parts)}


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


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_whitespace_is_told_as_it_was_written(layout):
    """Before each part of a document, the layout tells just the whitespace that the
    document has there."""
    random = Random(1)
    layouts = Layouts()

    def document():
        return json.dumps({"a": a_value(random)}, **layout).encode()

    for _ in range(30):
        Output(layouts).write(document())
    told = 0
    for _ in range(60):
        rest = document()
        output = Output(layouts)
        while rest:
            following = rest.lstrip(b" \t\n\r")
            said = output.next(following[:1])
            if said:
                told += 1
                assert said == rest[: len(rest) - len(following) + 1]
            size = random.choice([1, 1, 2, 3, 7])
            output.write(rest[:size])
            rest = rest[size:]
    assert told > 200


def test_a_layout_is_forgotten_when_outputs_change():
    layouts = Layouts()
    for text, times, spaces in ((b'{"a":  1}', 1000, b"  "), (b'{"a": 1}', 16, b" ")):
        for _ in range(times):
            Output(layouts).write(text)
        output = Output(layouts)
        output.write(b'{"a":')
        assert output.next(b"1") == spaces + b"1"
