"""Errors: the documented tree, their text, their fields across processes, hints for
misspelt names."""

import pickle
import re

import pytest

from guided_plugin import errors
from guided_plugin.errors import GuidedError, did_you_mean

KINDS = [kind for kind in errors.ERRORS if kind is not GuidedError]


def documented_tree():
    """Class name -> parent name, as the module docstring draws it."""
    parents = {}
    stack = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w*Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            del stack[depth:]
            parents[found[2]] = stack[-1] if stack else None
            stack.append(found[2])
    return parents


def test_docstring_draws_the_tree_that_the_classes_form():
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in KINDS}
    assert documented_tree() == {"GuidedError": None, **real}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "wrong"),
        ({"hint": "mend it"}, "wrong (mend it)"),
        ({"request_id": "r1"}, "request r1: wrong"),
        ({"request_id": ""}, "request : wrong"),
        (
            {"where": "#/a", "hint": "mend it", "request_id": "r1"},
            "request r1: #/a: wrong (mend it)",
        ),
    ],
)
def test_text_tells_request_place_fault_and_way_out(fields, text):
    assert str(GuidedError("wrong", **fields)) == text


@pytest.mark.parametrize("kind", [GuidedError, *KINDS])
def test_an_error_can_be_sent_and_told_as_that_of_a_request(kind):
    error = kind("what", where="there", hint="do this")
    told = pickle.loads(pickle.dumps(error.for_request("r1")))
    assert type(told) is kind
    assert str(told) == "request r1: there: what (do this)"
    assert error.request_id is None


def test_an_error_of_a_plugins_own_class_is_told_as_that_of_a_request():
    class Own(GuidedError):
        def __init__(self):
            super().__init__("what")

    assert str(Own().under("there").for_request("r1")) == "request r1: there: what"


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("strng", ("string", "number"), "did you mean 'string'?"),
        ("xyz", ("b", "a"), "known: a, b"),
        ("xyz", (), "known: none"),
        (7, ("a", "b"), "known: a, b"),
        (None, {"Nones": 1}, "did you mean 'Nones'?"),
    ],
)
def test_misspelt_names_get_the_nearest_or_all(word, known, hint):
    assert did_you_mean(word, known) == hint


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("giuded", "guided"),
        ("guide", "guided"),
        ("guided", ""),
        ("guided_json", ""),
        ("kv", ""),
        (7, ""),
        ("guided" * 20, ""),
        ("guidedBy", ""),
        ("propertiesOrder", ""),
        ("propertes", "properties"),
        ("proeprtise", "properties"),
        ("requiredIf", ""),
        ("requierd", "required"),
        ("additionalProperty", "additionalProperties"),
    ],
)
def test_a_near_miss_is_no_known_name_and_like_one(word, near):
    known = ["guided", "other", "properties", "required", "additionalProperties"]
    assert errors.near_miss(word, known) == near


CLIENT = "a\nb\r\x1b[31mred\x00\u202e\u2028\ud800é"


def test_messages_are_one_printable_line_of_bounded_length():
    error = errors.SpecError(
        CLIENT, where=f"#/properties/{CLIENT}", hint=CLIENT, request_id=CLIENT
    )
    for text in (str(error), error.reason, str(error.for_request("r"))):
        assert text.isprintable(), text
        assert r"a\nb\r\x1b[31mred\x00\u202e\u2028\ud800é" in text
    assert error.where == f"#/properties/{CLIENT}"  # as it is, for programs
    long = errors.SpecError(
        "begin" + "\n" * 10**6 + "end", where="w" * 10**6, hint="h" * 10**6
    )
    assert len(str(long)) < 3 * errors.MAX_CHARACTERS + 100
    assert re.search(r"begin\\n.* \.\.\. .*\\nend", str(long))


@pytest.mark.parametrize(
    "text", ["", "plain é", "x" * 999, CLIENT * 50, "\U000e0001" * 500, "\n" * 1000]
)
def test_what_is_printable_stays_as_it_is(text):
    line = errors.printable(text)
    assert line.isprintable()
    assert len(line) <= errors.MAX_CHARACTERS
    assert errors.printable(line) == line
    if text.isprintable() and len(text) <= errors.MAX_CHARACTERS:
        assert line == text


class Odd:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "short", [1, None, "a", ["a", 1], {"a": [1.5]}, (1,), b"x", True]
)
def test_short_values_are_shown_as_they_are(short):
    assert errors.shown(short) == repr(short)


def test_any_value_can_be_shown():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    for value in (
        10**10_000,
        -(10**10_000),
        "x" * 10**6,
        deep,
        {"a": deep},
        [1] * 10**6,
        Odd(),
        [Odd()],
        {Odd(): Odd()},
    ):
        text = errors.shown(value)
        assert len(text) < 500
        assert text.isprintable()
    assert errors.did_you_mean(deep, ["a"]) == "known: a"
