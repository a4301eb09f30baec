"""Formats: nothing is taken that their standards forbid.

Under `not`, `if` and `oneOf`, what any reading of a standard calls valid counts as
valid.
"""

import json
import random
import string

import jsonschema
import pytest
from instances import SAMPLES
from llguidance_specs import terminal_takes
from official_suite import ARCHIVE, groups
from oracle import FORMATS
from subjects import Subject

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.spec import formats

# Valid by some reading, though not by the one that is enforced.
MORE = {
    "date-time": [
        "2020-01-01 00:00:00Z",
        "0000-02-29T00:00:00Z",
        "2016-12-31t12:34:60.5+05:17",
    ],
    "date": ["0000-01-01", "0000-02-29"],
    "time": ["12:34:60Z", "23:59:60+00:07", "00:00:60z"],
    "duration": ["P1Y2D", "PT1H2S", "PT0.5S", "PT0,5S", "-P1D", "P1Y2W"],
    "email": [
        '"a b"@c',
        '"a@\\"b"@c.d',
        "é@ü.de",
        "a@[x:y]",
        "a" * 70 + "@b",
        "a@ab--cd",
    ],
    "hostname": ["ab--cd", "xn--9n2bp8q.xn--9t4b11yi5a", "XN--a", "example."],
    "ipv4": ["01.2.3.4", "001.002.003.255"],
    "ipv6": ["::ffff:01.2.3.4"],
    "uuid": [],
    "uri": ["http://[v1.a:b]/", "http://[fe80::1%25eth0]:8/", "http://[::1.2.3.04]"],
}
# Invalid by every reading.
NEVER = {
    "date-time": ["", "2020-01-01", "2020-13-01T00:00:00Z", "2021-02-29T00:00:00Z"],
    "date": ["", "2021-02-29", "2020-01-32", "20-01-01", "1900-02-29"],
    "time": ["", "24:00:00Z", "00:00:61Z", "00:00:00"],
    "duration": ["", "P", "PT", "P2D1Y", "P2S", "1D"],
    "email": ["", "a", "a.b"],
    "hostname": ["", ".", "-a", "a-", "a_b", "a" * 64, ".".join(["a" * 60] * 5)],
    "ipv4": ["", "1.2.3", "256.1.1.1", "1.2.3.4.5", "0001.2.3.4"],
    "ipv6": ["", "1", ":::", "12345::", "1:2:3:4:5:6:7:8:9"],
    "uuid": ["", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
    "uri": ["", "abc", "/abc", "http:// a", "http://a/%6G", "1http://a"],
}
NAMES = sorted(formats.FORMATS)


def written(text):
    return json.dumps(text, ensure_ascii=False)


def mutated(name, seed, count):
    source = random.Random(f"{name} {seed}")
    for _ in range(count):
        text = source.choice(SAMPLES[name] + MORE[name])
        for _ in range(source.choice((0, 1, 1, 2))):
            at = source.randint(0, len(text))
            piece = source.choice(
                (source.choice(string.printable + "é"), "", "-", "--", ":", "60")
            )
            text = text[:at] + piece + text[at + source.choice((0, 1)) :]
        yield text


LONG = ".".join(["a" * 49] * 5) + ".abc"
"""As long as a host name may be."""

# Some that are easily taken by mistake, or forgotten.
FORBIDDEN = {
    "hostname": ["a" * 64 + ".b", "xn--X", f"{LONG}d"],
    "email": ["a..b@c", "a" * 65 + "@b", "a@[IPv6:1::2::3]", f"a@{LONG}d"],
    "date-time": ["2024-01-01T24:00:00Z", "1998-12-31T23:58:60Z"],
    "time": [
        "22:59:60Z",
        "23:58:60+00:00",
        "23:59:60+01:00",
        "23:59:60-01:00",
        "01:29:60-01:30",
        "23:59:61Z",
    ],
    "ipv6": ["1:2:3:4:5:6:7::8"],
    "duration": ["P1YT"],
    "uri": ["http://[::1"],
}
ALLOWED = {
    "time": ["23:59:60Z", "15:59:60.5-08:00", "08:30:06z"],
    "date-time": ["1963-06-19t08:30:06.283185z"],
    "email": ["joe@[IPv6:::1]", f"a@{LONG}"],
    "hostname": [LONG],
}


@pytest.mark.parametrize("name", NAMES)
def test_formats_allow_ordinary_texts_and_nothing_that_their_rfc_forbids(name):
    right = [*SAMPLES[name], *ALLOWED.get(name, [])]
    assert [text for text in right if not patterns.matches_format(name, text)] == []
    taken = [
        text for text in mutated(name, 3, 6000) if patterns.matches_format(name, text)
    ]
    assert [text for text in taken if not FORMATS[name](text)] == []
    assert len(taken) > 300
    wrong = [*MORE[name], *NEVER[name], *FORBIDDEN.get(name, [])]
    assert [text for text in wrong if patterns.matches_format(name, text)] == []
    for text in ALLOWED.get(name, []):
        assert terminal_takes(patterns.quoted_format(name), f'"{text}"')
        assert not terminal_takes(patterns.quoted_format(name), f'"{text} "')


@pytest.mark.parametrize("name", ["time", "date-time"])
def test_leap_seconds_are_taken_exactly_where_utc_has_them(name):
    day = "1998-12-31T" if name == "date-time" else ""
    for sign in "+-":
        for offset in range(0, 1440, 15):
            shift = offset if sign == "+" else -offset
            for minute in {
                (1439 + shift) % 1440,
                1439,
                (1439 - shift) % 1440,
                (1438 + shift) % 1440,
            }:
                clock = f"{minute // 60:02}:{minute % 60:02}:60{sign}{offset // 60:02}:{offset % 60:02}"
                right = minute == (1439 + shift) % 1440
                assert patterns.matches_format(name, day + clock) == right, clock


@pytest.mark.parametrize("name", NAMES)
def test_the_wide_form_takes_what_is_valid_by_any_reading(name):
    texts = [*SAMPLES[name], *MORE[name], *mutated(name, 0, 3000)]
    valid = [
        text
        for text in texts
        if FORMATS[name](text) or patterns.matches_format(name, text)
    ]
    assert [
        text
        for text in [*valid, *MORE[name]]
        if not patterns.matches(formats.WIDE[name], text)
    ] == []
    assert len(valid) > 300
    assert not any(patterns.matches(formats.WIDE[name], text) for text in NEVER[name])


@pytest.mark.skipif(not ARCHIVE.exists(), reason="the official suite is not there")
def test_the_wide_form_takes_every_valid_text_of_the_official_suite():
    seen = 0
    for draft in ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"):
        for group in groups(draft, folder="optional/format"):
            wide = formats.WIDE.get(group.schema.get("format", ""))
            texts = [json.loads(text) for text, valid in group.tests if valid]
            for text in texts if wide else ():
                if isinstance(text, str):
                    assert patterns.matches(wide, text), (group.name, text)
                    seen += 1
    assert seen > 400


@pytest.mark.parametrize("name", NAMES)
def test_negated_formats_take_only_what_no_reading_calls_valid(name):
    texts = [*SAMPLES[name], *MORE[name], *NEVER[name], *mutated(name, 1, 40)]
    for schema in (
        {"type": "string", "not": {"format": name}},
        {"type": "string", "if": {"format": name}, "then": False},
        {"type": "string", "oneOf": [{"format": name}, True]},
        {"enum": texts, "not": {"format": name}},
    ):
        subject = Subject(schema)
        for text in texts:
            taken = subject.takes(written(text))
            assert taken == (not patterns.matches(formats.WIDE[name], text)), (
                schema,
                text,
            )


@pytest.mark.parametrize("name", NAMES)
def test_between_the_readings_neither_branch_of_a_condition_is_taken(name):
    schema = {
        "if": {"format": name},
        "then": {"minLength": 1},
        "else": {"maxLength": 60},
        "type": "string",
    }
    subject = Subject(schema)
    for text in [*SAMPLES[name][:4], *MORE[name], *NEVER[name]]:
        strict = patterns.matches_format(name, text)
        wide = patterns.matches(formats.WIDE[name], text)
        right = strict or (not wide and len(text) <= 60)
        assert subject.takes(written(text)) == right, text


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        (
            {"if": {"format": "time"}, "then": {"pattern": "{"}},
            ["00:00:00z", "12:34:60Z"],
            ["{", "a"],
        ),
        # `b` is the only one that is surely one of both.
        (
            {"oneOf": [{"enum": ["ab--cd", "a_b"]}, {"format": "hostname"}]},
            ["ab--cd"],
            ["a_b", "b"],
        ),
        (
            {"oneOf": [{"format": "time"}, {"pattern": "^12:34:60Z$"}]},
            ["12:34:60Z"],
            ["12:34:59Z"],
        ),
        (
            {"oneOf": [{"format": "ipv4"}, {"format": "hostname"}]},
            ["01.2.3.4", "1.2.3.4"],
            ["a", "1.2.3.4.5"],
        ),
        (
            {"not": {"oneOf": [{"format": "date"}, {"const": "0000-01-01"}]}},
            ["0000-01-01", "2020-01-01"],
            ["a"],
        ),
        (
            {"not": {"allOf": [{"format": "date"}, {"pattern": "^0"}]}},
            ["0000-01-01", "0001-01-01"],
            ["a"],
        ),
        ({"not": {"not": {"format": "date"}}}, ["0000-01-01", "a"], ["2020-01-01"]),
        (
            {"not": {"not": {"not": {"format": "date"}}}},
            ["0000-01-01", "2020-01-01"],
            ["a"],
        ),
        (
            {"anyOf": [{"not": {"format": "date"}}, {"maxLength": 3}]},
            ["0000-01-01"],
            ["abcd"],
        ),
    ],
)
def test_strings_between_the_readings(schema, wrong, right):
    subject = Subject({"type": "string", **schema})
    assert [text for text in wrong if subject.takes(written(text))] == []
    assert [text for text in right if not subject.takes(written(text))] == []


A_DATE = "2020-01-01"
NOT_QUITE = "0000-01-01"
NO_DATE = "x"


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (
            {"not": {"properties": {"a": {"format": "date"}}}},
            [{"a": NOT_QUITE}, {"a": A_DATE}],
        ),
        ({"not": {"items": {"format": "date"}}}, [[NOT_QUITE], [A_DATE, NOT_QUITE]]),
        (
            {"not": {"contains": {"format": "date"}}},
            [[NOT_QUITE, NOT_QUITE], [NOT_QUITE, 1]],
        ),
        (
            {
                "oneOf": [
                    {"properties": {"a": {"format": "date"}}, "required": ["a"]},
                    {"properties": {"a": {"const": NOT_QUITE}}, "required": ["a"]},
                ]
            },
            [{"a": NOT_QUITE}],
        ),
        (
            {
                "not": {
                    "anyOf": [
                        {
                            "properties": {"a": {"format": "date", "const": NOT_QUITE}},
                            "required": ["a"],
                        },
                        {"properties": {"b": True}, "required": ["b"]},
                    ],
                }
            },
            [{"a": NOT_QUITE}],
        ),
        (
            {
                "if": {"properties": {"a": {"format": "date"}}},
                "else": {"required": ["b"]},
                "then": {"maxProperties": 0},
            },
            [{"a": NOT_QUITE, "b": 1}],
        ),
    ],
)
def test_values_between_the_readings(schema, values):
    subject = Subject(schema)
    assert [
        value
        for value in values
        if subject.takes(json.dumps(value, separators=(",", ":")))
    ] == []


def test_a_format_and_its_negation_have_nothing_in_common(backend):
    for name in NAMES:
        schema = {"type": "string", "format": name, "not": {"format": name}}
        with pytest.raises(UnsupportedSpecError):
            backend.compile(OutputSpec.json_schema(schema))


@pytest.mark.parametrize("name", NAMES)
def test_the_wide_form_is_written_with_the_escapes_of_json(name):
    terminal = patterns.pattern(formats.WIDE[name])
    for text in [*SAMPLES[name], *MORE[name], *NEVER[name], *mutated(name, 2, 100)]:
        right = patterns.matches(formats.WIDE[name], text)
        assert terminal_takes(terminal, written(text)) == right, text


DOUBTFUL = [
    ("date", "0000-01-01"),
    ("hostname", "ab--cd"),
    ("ipv4", "01.2.3.4"),
    ("time", "12:34:60Z"),
]
SAID = [
    text for name, doubtful in DOUBTFUL for text in (doubtful, SAMPLES[name][0])
] + ["-"]


class Schemas:
    """Random schemas about texts that have a format only by some reading."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self, depth=3):
        if depth == 0 or self.random.random() < 0.2:
            return self.leaf()
        part = lambda: self.schema(depth - 1)  # noqa: E731
        return self.random.choice(
            (
                lambda: {"not": part()},
                lambda: {"if": part(), "then": part(), "else": part()},
                lambda: {"oneOf": [part(), part()]},
                lambda: {"oneOf": [part(), part(), part()]},
                lambda: {"anyOf": [part(), part()]},
                lambda: {"allOf": [part(), part()]},
                lambda: {"properties": {"a": part()}, "required": ["a"]},
                lambda: {"propertyNames": part()},
                lambda: {"items": part(), "minItems": 1},
                lambda: {"contains": part()},
                lambda: {"additionalProperties": part(), "properties": {"a": part()}},
            )
        )()

    def leaf(self):
        return self.random.choice(
            (
                {"format": self.random.choice(DOUBTFUL)[0]},
                {"const": self.random.choice(SAID)},
                {"enum": self.random.sample(SAID, 3)},
                {"pattern": "^[0-9]"},
                {"minLength": 9},
            )
        )

    def value(self):
        text = lambda: self.random.choice(SAID)  # noqa: E731
        return self.random.choice(
            (
                text,
                lambda: {"a": text()},
                lambda: {"a": text(), text(): text()},
                lambda: {text(): text()},
                lambda: [text()],
                lambda: [text(), text()],
            )
        )()


def judges(schema):
    """Checkers that read formats as narrowly and as widely as can be."""
    for has in (
        patterns.matches_format,
        lambda name, text: patterns.matches(formats.WIDE[name], text),
    ):
        checker = jsonschema.FormatChecker(formats=())
        for name in NAMES:
            checker.checks(name)(
                lambda text, name=name, has=has: (
                    not isinstance(text, str) or has(name, text)
                )
            )
        yield jsonschema.Draft202012Validator(schema, format_checker=checker)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_taken_is_valid_by_every_reading(seed):
    source = Schemas(seed)
    taken = 0
    for _ in range(25):
        schema = source.schema()
        try:
            subject = Subject(schema)
        except (UnsatisfiableSpecError, UnsupportedSpecError):
            continue
        narrow, wide = judges(schema)
        for value in [source.value() for _ in range(30)]:
            if subject.takes(json.dumps(value, separators=(",", ":"))):
                taken += 1
                assert narrow.is_valid(value), (schema, value)
                assert wide.is_valid(value), (schema, value)
    assert taken > 100
