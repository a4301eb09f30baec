"""The dialect of regular expressions: what each construct means, and what is
refused."""

import pytest

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.patterns import matches
from guided_plugin.spec.ecma import (
    Alternation,
    Anchor,
    Characters,
    Look,
    Repeat,
    Sequence,
    parse,
)
from guided_plugin.spec.properties import canonical_property, has_property

A = Characters(((97, 97),))
B = Characters(((98, 98),))


@pytest.mark.parametrize(
    ("pattern", "tree"),
    [
        ("", Sequence()),
        ("ab", Sequence((A, B))),
        ("a|b", Alternation((A, B))),
        ("^a$", Sequence((Anchor(True), A, Anchor(False)))),
        ("(a)", A),
        ("(?:a)", A),
        ("(?<name>a)", A),
        ("(?P<name>a)", A),
        ("a{2,}?", Repeat(A, 2, None)),
        ("a{2}", Repeat(A, 2, 2)),
        ("(?!a)b", Sequence((Look(A, True), B))),
        ("(?=a)*b", Sequence((Sequence(), B))),
        ("(?=a){2}b", Sequence((Look(A, False), B))),
    ],
)
def test_trees(pattern, tree):
    assert parse(pattern) == tree


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (".", "aé\u0085\x0b😀", "\n\r\u2028\u2029"),
        (r"\d", "09", "٣a"),
        (r"\D", "٣a", "5"),
        (r"\w", "aZ_0", "é-٣"),
        (r"\W", "é-", "a_"),
        (r"\s", "\t\n\x0b\f\r \xa0\u1680\u2028\u3000\ufeff", "a\x1c\x85\u200b"),
        (r"\S", "a\x1c\x85", " \ufeff"),
        (r"[^]", "a\n😀", ""),
        (r"[\w-a]", "b-a", "."),
        (r"[a-\d]", "a-5", "b"),
        (r"[--/]", "-./", "0"),
        (r"[a&&b]", "a&b", "c"),
        (r"[\b]", "\b", "b"),
        (r"[[]", "[", "]"),
        (r"[^\w\s]", "-é", "a "),
        (r"\cJ", "\n", "J"),
        (r"\0", "\0", "0"),
        (r"\x41", "A", "x"),
        (r"\u0041", "A", "u"),
        (r"\u{1F600}", "😀", "u"),
        (r"\ud83d\uDE00", "😀", "d"),
        (r"[\ud83d\ude00-\u{1F602}]", "😀😁😂", "😃"),
        (r"\p{Lu}", "AÉ", "a1"),
        (r"\P{Lu}", "a1", "A"),
        (r"[\p{L}\d]", "aé5", "-"),
        (r"[^\p{Letter}]", "5-", "é"),
        *(
            (f"\\{char}", char, "\\a")
            for char in "^$.*+?()[]{}|/-_\"'@#%&=~`<>,;:! é"[:-1]
        ),
        ("{name}"[:1], "{", "a"),
        ("}", "}", "{"),
        ("]", "]", "["),
    ],
)
def test_what_one_character_may_be(pattern, matching, others):
    for char in matching:
        assert matches(f"^(?:{pattern})$", char), char
    for char in others:
        assert not matches(f"^(?:{pattern})$", char), char


@pytest.mark.parametrize(
    ("pattern", "what", "position"),
    [
        *((f"ab\\{letter}", f"\\{letter}", 2) for letter in "AZzQEhHRXKGNaeiyl"),
        (r"a\b", "word boundary", 1),
        (r"\Ba", "word boundary", 0),
        (r"[\B]", "word boundary", 1),
        (r"(a)\1", "backreference", 3),
        (r"(?<x>a)\k<x>", "backreference", 7),
        (r"[\1]", "octal", 1),
        (r"\01", "octal", 0),
        ("(?<=a)b", "lookbehind", 0),
        ("(?<!a)b", "lookbehind", 0),
        *(
            (f"a{opening}b)", "extension of a group", 1)
            for opening in ("(?i", "(?i:", "(?>", "(?R", "(?#", "(?|")
        ),
        ("(?P=n)", "extension of a group", 0),
        ("(?", "extension of a group", 0),
        ("a**", "quantifier after a quantifier", 2),
        ("a{2}{3}", "quantifier after a quantifier", 4),
        ("a+*", "quantifier after a quantifier", 2),
        ("a*??", "quantifier after a quantifier", 3),
        ("a*+", "possessive", 2),
        ("a{1,2}+", "possessive", 6),
        ("*a", "nothing before", 0),
        ("(?:+)", "nothing before", 3),
        ("a|?", "nothing before", 2),
        ("a{,3}", "quantifier", 1),
        ("a{ 1, 2 }", "quantifier", 1),
        ("{2}", "quantifier", 0),
        ("a{2,1}", "wrong way round", 1),
        ("a{99999999999}", "more than a billion", 1),
        ("[b-a]", "wrong way round", 4),
        ("[a--b]", "wrong way round", 4),
        ("a\\", "backslash at the end", 1),
        ("[[:alpha:]]", "POSIX", 1),
        ("[a[:^digit:]]", "POSIX", 2),
        ("[[=a=]]", "POSIX", 1),
        ("[]a]", "] that dialects", 3),
        ("[^]a]", "] that dialects", 4),
        ("[a-z&&[^b]]", "] that dialects", 10),
        ("(a", "( without", 2),
        ("a)", ") without", 1),
        ("a[b", "[ without", 1),
        ("[a\\]", "[ without", 0),
        (r"\x4", "broken escape", 0),
        (r"\u12", "broken escape", 0),
        (r"\u{110000}", "broken escape", 0),
        (r"\c1", "broken escape", 0),
        (r"\p{L", "property", 0),
        (r"\pL", "property", 0),
        (r"\p{Greek}", "property", 0),
        (r"\p{Script=Elvish}", "property", 0),
        (r"\p{letter}", "property", 0),
        ("(" * 102, "nested", 101),
    ],
)
def test_what_is_refused_and_where(pattern, what, position):
    with pytest.raises(UnsupportedSpecError) as caught:
        parse(pattern)
    assert what in caught.value.what
    assert f"at position {position} of" in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *(
            ("L", "L"),
            ("Lu", "Lu"),
            ("Uppercase_Letter", "Lu"),
            ("gc=Nd", "Nd"),
            ("punct", "P"),
        ),
        *(
            ("General_Category=Letter", "L"),
            ("Script=Greek", "Script=Greek"),
            ("sc=Grek", "Script=Greek"),
        ),
        *(
            ("scx=Latn", "Script_Extensions=Latin"),
            ("Emoji", "Emoji"),
            ("ASCII", "ASCII"),
        ),
        *(
            ("Greek", None),
            ("Script=greek", None),
            ("Foo=L", None),
            ("gc=Greek", None),
            ("lu", None),
        ),
    ],
)
def test_names_of_properties(written, name):
    assert canonical_property(written) == name


def test_the_characters_of_properties():
    assert has_property("p{P}", 34)
    assert not has_property("P{P}", 34)
    assert has_property("p{Cc}", 1)
    assert has_property("p{Script=Common}", 34)
    assert not has_property("p{Script=Greek}", 34)
    assert has_property("P{Script=Greek}", 34)
    assert has_property("p{White_Space}", 10)
