"""Formats: nothing is taken that their standards forbid.

Under `not`, `if` and `oneOf`, what any reading of a standard calls valid counts as
valid.
"""

import json
import random
import string

import jsonschema
import pytest
from instances import SAMPLES, text_of
from llguidance_specs import terminal_takes
from official_suite import ARCHIVE, DRAFTS, groups
from oracle import FORMATS
from subjects import Subject

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.spec import formats

LONG = ".".join(["a" * 49] * 5) + ".abc"
"""As long as a host name may be."""

# Valid by some reading, though not by the one that is enforced.
MORE = {
    "date-time": "2020-01-01 00:00:00Z|0000-02-29T00:00:00Z|2016-12-31t12:34:60.5+05:17",
    "date": "0000-01-01|0000-02-29",
    "time": "12:34:60Z|23:59:60+00:07|00:00:60z",
    "duration": "P1Y2D|PT1H2S|PT0.5S|PT0,5S|-P1D|P1Y2W",
    "email": '"a b"@c|"a@\\"b"@c.d|é@ü.de|a@[x:y]|a@ab--cd|' + "a" * 70 + "@b",
    "hostname": "ab--cd|xn--9n2bp8q.xn--9t4b11yi5a|XN--a|example.",
    "ipv4": "01.2.3.4|001.002.003.255",
    "ipv6": "::ffff:01.2.3.4",
    "uri": "http://[v1.a:b]/|http://[fe80::1%25eth0]:8/|http://[::1.2.3.04]",
}
# Invalid by every reading.
NEVER = {
    "date-time": "|2020-01-01|2020-13-01T00:00:00Z|2021-02-29T00:00:00Z",
    "date": "|2021-02-29|2020-01-32|20-01-01|1900-02-29",
    "time": "|24:00:00Z|00:00:61Z|00:00:00",
    "duration": "|P|PT|P2D1Y|P2S|1D",
    "email": "|a|a.b",
    "hostname": "|.|-a|a-|a_b|" + "a" * 64 + "|" + ".".join(["a" * 60] * 5),
    "ipv4": "|1.2.3|256.1.1.1|1.2.3.4.5|0001.2.3.4",
    "ipv6": "|1|:::|12345::|1:2:3:4:5:6:7:8:9",
    "uuid": "|2eb8aa08-aa98-11ea-b4aa-73b441d1638",
    "uri": "|abc|/abc|http:// a|http://a/%6G|1http://a",
}
# Some that are easily taken by mistake, or forgotten.
FORBIDDEN = {
    "hostname": "a" * 64 + f".b|xn--X|{LONG}d",
    "email": f"a..b@c|a@[IPv6:1::2::3]|a@{LONG}d|" + "a" * 65 + "@b",
    "date-time": "2024-01-01T24:00:00Z|1998-12-31T23:58:60Z",
    "time": "22:59:60Z|23:58:60+00:00|23:59:60+01:00|01:29:60-01:30|23:59:61Z",
    "ipv6": "1:2:3:4:5:6:7::8",
    "duration": "P1YT",
    "uri": "http://[::1",
}
ALLOWED = {
    "time": "23:59:60Z|23:59:60.5-00:00|08:30:06z",
    "date-time": "1963-06-19t08:30:06.283185z",
    "email": f"joe@[IPv6:::1]|a@{LONG}",
    "hostname": LONG,
}
NAMES = sorted(formats.FORMATS)


def texts_of(table, name):
    return table[name].split("|") if name in table else []


def narrowly(name, text):
    return patterns.matches_format(name, text)


def widely(name, text):
    return patterns.matches(formats.WIDE[name], text)


def mutated(name, seed, count):
    source = random.Random(f"{name} {seed}")
    texts = [*SAMPLES[name], *texts_of(MORE, name)]
    pieces = ["", "-", "--", ":", "60", *string.printable, "é"] + [""] * 20
    for _ in range(count):
        text = source.choice(texts)
        for _ in range(source.choice((0, 1, 1, 2))):
            at = source.randint(0, len(text))
            end = at + source.choice((0, 1))
            text = text[:at] + source.choice(pieces) + text[end:]
        yield text


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_texts_are_allowed_and_nothing_that_a_standard_forbids(name):
    """The wide form takes what is valid by any reading."""
    more = texts_of(MORE, name)
    never = texts_of(NEVER, name)
    for text in [*SAMPLES[name], *texts_of(ALLOWED, name)]:
        assert narrowly(name, text), text
    for text in [*more, *never, *texts_of(FORBIDDEN, name)]:
        assert not narrowly(name, text), text
    for text in more:
        assert widely(name, text), text
    for text in never:
        assert not widely(name, text), text
    taken = 0
    for text in mutated(name, 3, 6000):
        if narrowly(name, text):
            taken += 1
            assert FORMATS[name](text), text
        if FORMATS[name](text):
            assert widely(name, text), text
    assert taken > 300
    terminal = patterns.quoted_format(name)
    for text in texts_of(ALLOWED, name):
        assert terminal_takes(terminal, f'"{text}"')
        assert not terminal_takes(terminal, f'"{text} "')


@pytest.mark.parametrize(("name", "day"), [("time", ""), ("date-time", "1998-12-31T")])
def test_leap_seconds_are_taken_where_utc_has_them_and_as_utc(name, day):
    for offset in range(-1425, 1440, 15):
        sign = "-" if offset < 0 else "+"
        zone = f"{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
        for minute in {1439, (1439 + offset) % 1440, 1438}:
            clock = f"{minute // 60:02}:{minute % 60:02}:60{zone}"
            right = (minute, offset) == (1439, 0)
            assert narrowly(name, day + clock) == right, clock


@pytest.mark.skipif(not ARCHIVE.exists(), reason="the official suite is not there")
def test_the_wide_form_takes_every_valid_text_of_the_official_suite():
    seen = 0
    for draft in DRAFTS:
        for group in groups(draft, folder="optional/format"):
            name = group.schema.get("format")
            valid = [json.loads(text) for text, valid in group.tests if valid]
            for text in valid if name in formats.WIDE else ():
                if isinstance(text, str):
                    assert widely(name, text), text
                    seen += 1
    assert seen > 400


@pytest.mark.parametrize("name", NAMES)
def test_negated_formats_take_only_what_no_reading_calls_valid(name):
    texts = [*SAMPLES[name], *texts_of(MORE, name), *texts_of(NEVER, name)]
    texts += mutated(name, 1, 40)
    for schema in (
        {"type": "string", "not": {"format": name}},
        {"type": "string", "if": {"format": name}, "then": False},
        {"type": "string", "oneOf": [{"format": name}, True]},
        {"enum": texts, "not": {"format": name}},
    ):
        subject = Subject(schema)
        for text in texts:
            assert subject.takes(text_of(text)) != widely(name, text), (schema, text)
    with pytest.raises(UnsupportedSpecError):
        Subject({"type": "string", "format": name, "not": {"format": name}})


DOUBTFUL = {
    "date": "0000-01-01",
    "hostname": "ab--cd",
    "ipv4": "01.2.3.4",
    "time": "12:34:60Z",
}
SAID = ["-", *DOUBTFUL.values(), *(SAMPLES[name][0] for name in DOUBTFUL)]
LEAVES = [
    *({"format": name} for name in DOUBTFUL),
    *({"const": text} for text in SAID[:4]),
    {"enum": SAID[4:]},
    {"pattern": "^[0-9]"},
    {"minLength": 9},
]
FORMS = """
    {"not": $}
    {"if": $, "then": $, "else": $}
    {"oneOf": [$, $]}
    {"oneOf": [$, $, $]}
    {"anyOf": [$, $]}
    {"allOf": [$, $]}
    {"properties": {"a": $}, "required": ["a"]}
    {"propertyNames": $}
    {"items": $, "minItems": 1}
    {"contains": $}
    {"additionalProperties": $, "properties": {"a": $}}
""".strip().splitlines()
"""Each `$` stands for another schema."""


def random_schema(chance, depth=3):
    """The text of a schema about texts that have a format only by some reading."""
    if depth == 0 or chance.random() < 0.2:
        return json.dumps(chance.choice(LEAVES))
    form = chance.choice(FORMS)
    while "$" in form:
        form = form.replace("$", random_schema(chance, depth - 1), 1)
    return form


def random_value(chance):
    text, name, other = chance.choices(SAID, k=3)
    values = [text, {"a": text}, {"a": text, name: other}, {name: text}]
    return chance.choice([*values, [text], [text, other]])


def judge(schema, reading):
    """A validator that reads formats as narrowly, or as widely, as can be."""

    def checked(name):
        return lambda text: not isinstance(text, str) or reading(name, text)

    checker = jsonschema.FormatChecker(formats=())
    for name in NAMES:
        checker.checks(name)(checked(name))
    return jsonschema.Draft202012Validator(schema, format_checker=checker)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_taken_is_valid_by_every_reading(seed):
    chance = random.Random(seed)
    taken = 0
    for _ in range(25):
        schema = json.loads(random_schema(chance))
        try:
            subject = Subject(schema)
        except (UnsatisfiableSpecError, UnsupportedSpecError):
            continue
        judges = [judge(schema, reading) for reading in (narrowly, widely)]
        for value in [random_value(chance) for _ in range(30)]:
            if subject.takes(text_of(value)):
                taken += 1
                assert all(one.is_valid(value) for one in judges), (schema, value)
    assert taken > 100
