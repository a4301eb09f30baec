"""Numbers as regular expressions, against exact arithmetic on the decimals around them."""

import itertools
import random
import re
import time
from decimal import Decimal
from fractions import Fraction

import pytest

from guided_plugin import OutputSpec
from guided_plugin.grammar.llguidance.lark.numbers import Spelling, number_terms
from guided_plugin.grammar.llguidance.lark.ranges import Bound, Number
from guided_plugin.spec.arithmetic import plain

BOUNDS = [0, 1, -1, 5, 9, 10, -10, 99, 100, 101, -199, 1000, 12345, 0.5, -0.5, 1.25, -19.95, 0.001, 9.99, 2.0]
BOUNDS += [-0.0, 1e-7, 1e22, 123456789012345678901, 99.9, -100.01]


def takes(number, text, *, fraction_zero=True, exponents=False):
    """Whether the expressions of a number allow a text."""
    terms, excluded = number_terms(number, Spelling(fraction_zero, exponents))
    return all(re.fullmatch(term, text) for term in terms) and not any(
        re.fullmatch(term, text) for term in excluded
    )


def decimals(*near, count=400, seed=0):
    """Texts of numbers without exponents: each of some values, its neighbours, and any others."""
    source = random.Random(seed)
    texts = {"0", "-0", "0.0", "-0.00", "1", "-1", "1.0", "10", "9.9"}
    for value in near:
        text = plain(value)
        whole, _, fraction = text.lstrip("-").partition(".")
        sign = "-" if text.startswith("-") else ""
        for changed, tail in itertools.product(
            (whole, whole + "0", whole[:-1] or "0"), ("", ".0", ".000", ".01")
        ):
            texts.add(sign + _without_zeros(changed) + tail)
        for digits in (fraction, fraction + "0", fraction + "1", fraction[:-1], fraction + "00"):
            texts.update(s + whole + ("." + digits if digits else "") for s in ("", "-"))
        for step in (Decimal(1), Decimal("0.1"), Decimal("1e-7"), Decimal("1e-9")):
            texts.update(format(Decimal(text) + s * step, "f") for s in (1, -1))
    while len(texts) < count:
        whole = str(source.randrange(10 ** source.randint(1, 6)))
        fraction = "".join(source.choice("0123456789") for _ in range(source.randint(0, 4)))
        texts.add(source.choice(("", "-")) + whole + ("." + fraction if fraction else ""))
    return sorted(texts)


def _without_zeros(digits):
    return digits.lstrip("0") or "0"


def exact(value):
    return Fraction(Decimal(repr(value)))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("value", BOUNDS)
def test_one_bound(value, exclusive):
    low, high = Number(low=Bound(value, exclusive)), Number(high=Bound(value, exclusive))
    for text in decimals(value):
        number, bound = Fraction(text), exact(value)
        equal = number == bound and not exclusive
        signed = text.startswith("-") and value >= 0
        assert takes(low, text) == (not signed and (number > bound or equal)), text
        assert takes(high, text) == (number < bound or equal), text


@pytest.mark.parametrize(
    ("low", "high"), [(-5, 5), (0.5, 0.75), (9.5, 101), (-1000, -1), (-0.25, 1e-7), (3, 3)]
)
def test_ranges_of_integers_and_numbers(low, high):
    whole, number = (Number(kind, Bound(low, False), Bound(high, False)) for kind in (True, None))
    for text in decimals(low, high):
        inside = exact(low) <= Fraction(text) <= exact(high)
        assert takes(number, text) == inside, text
        # Whole numbers of which none is below zero have no sign.
        integer = inside and Fraction(text).denominator == 1 and not (low > -1 and text.startswith("-"))
        assert takes(whole, text) == integer, text
        written_whole = integer and "." not in text
        assert takes(whole, text, fraction_zero=False) == written_whole, text


@pytest.mark.parametrize("divisor", [1, 10, 100, 1000, 0.1, 0.01, 0.001, 1.0, 1e-7, 1e5])
def test_multiples_of_powers_of_ten(divisor):
    multiples, others = Number(multiples=frozenset({divisor})), Number(no_multiples=frozenset({divisor}))
    for text in [*decimals(divisor, 100, 2000, 0.01), "100000", "-300000.0", "150000"]:
        divisible = Fraction(text) % exact(divisor) == 0
        assert takes(multiples, text) == divisible, text
        assert takes(others, text) != divisible, text


def scientific(*near, count=300, seed=0):
    """Texts with an exponent: each of some values in several spellings, its neighbours, and any others."""
    source = random.Random(seed)
    values = [exact(value) * factor for value in near for factor in (1, -1, 10, Fraction(1, 10), 3)]
    values += [value + step for value in values[:8] for step in (1, -1, Fraction(1, 100))]
    texts = {"0e5", "1e0", "-1E+00", "10e-1", "1.0e5", "1e-1", "12e5", "1.50e1", "1e99", "1e-99", "9.9e0"}
    for value in filter(None, values):
        shift = source.randint(-3, 3)
        for power in (_power(value), shift):
            mantissa = plain(value / Fraction(10) ** power)
            texts.update({f"{mantissa}e{power}", f"{mantissa}E{power:+03d}"})
    while len(texts) < count:
        mantissa = round(source.uniform(1, 10), source.randint(0, 3))
        texts.add(f"{source.choice(('', '-'))}{mantissa}e{source.randint(-9, 12)}")
    return sorted(texts)


def _power(value):
    return max(power for power in range(-40, 40) if Fraction(10) ** power <= abs(value))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("value", [0, 1, -1, 5, 10, -10, 1000, -12345, 0.5, -0.05, 1.25, 1e10, -1e10, 1e-7])
def test_a_bound_and_exponents(value, exclusive):
    low, high = Number(low=Bound(value, exclusive)), Number(high=Bound(value, exclusive))
    for text in scientific(value):
        number, bound = Fraction(text), exact(value)
        for one, inside in ((low, number >= bound), (high, number <= bound)):
            inside = inside and not (exclusive and number == bound)
            assert inside or not takes(one, text, exponents=True), text


@pytest.mark.parametrize(
    ("low", "high", "large", "small"),
    [
        (0, None, True, True),
        (1, None, True, False),
        (2, None, False, False),
        (-5, None, True, True),
        (0, 1, False, True),
        (0, 0.5, False, False),
        (-1, 100, False, True),
        (None, 100, False, True),
    ],
)
def test_exponents_where_all_numbers_with_such_a_one_are_between_the_bounds(low, high, large, small):
    number = Number(
        low=low if low is None else Bound(low, False), high=None if high is None else Bound(high, True)
    )
    for text in ("1e0", "1.5e1", "9.25E+300", "2e07"):
        assert takes(number, text, exponents=True) == large, text
    for text in ("1e-1", "1.5e-10", "9.25E-300", "2e-07"):
        assert takes(number, text, exponents=True) == small, text


@pytest.mark.parametrize(
    "number",
    [
        Number(True),
        Number(True, low=Bound(-5, False)),
        Number(False),
        Number(multiples=frozenset({100})),
        Number(multiples=frozenset({0.01}), high=Bound(1000, False)),
        Number(excluded=frozenset({5, 1000})),
        Number(True, excluded=frozenset({10})),
        Number(values=(5, 1000, 0.25, -1000)),
        Number(no_multiples=frozenset({10})),
    ],
)
def test_exponents_of_numbers_under_other_demands(number):
    for text in scientific(5, 1000, 0.25, 100, 12300):
        assert number.has(Fraction(text)) or not takes(number, text, exponents=True), text


@pytest.mark.parametrize("text", ["5e3", "1.0e0", "15e-1", "1e-1", "1.25e1", "1e22"])
@pytest.mark.parametrize("number", [Number(True), Number(multiples=frozenset({10})), Number(values=(5000,))])
def test_only_numbers_between_bounds_have_an_exponent(number, text):
    assert not takes(number, text, exponents=True)
    assert takes(Number(low=Bound(0, False)), text, exponents=True) == (text[1] in "e.")
    assert not takes(Number(low=Bound(0, False)), text)


@pytest.mark.parametrize("low", [Bound(-5, False), Bound(0, False), Bound(1e-300, True)])
def test_exponents_under_a_demand_stay_within_those_of_doubles(low):
    number = Number(low=low)
    for text in (
        "1e400",
        "9e308",
        "1.8e308",
        "1.7976931348623158e+308",
        "10e308",
        "123e300",
        "1e1000",
        "1e-400",
    ):
        assert not takes(number, text, exponents=True), text


@pytest.mark.parametrize("value", [0, 1, -1, 1.5, -0.25, 100, 1e-7, 1e22, 2.0])
def test_values_and_exclusions(value):
    only, others = Number(values=(value,)), Number(excluded=frozenset({value}))
    for text in decimals(value):
        assert takes(only, text) == (Fraction(text) == exact(value)), text
        assert takes(others, text) == (Fraction(text) != exact(value)), text


def test_numbers_with_a_fraction():
    for text in decimals(0.5, 3):
        assert takes(Number(whole=False), text) == (Fraction(text).denominator > 1), text


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        *((text, True) for text in ("0", "-0", "1e5", "1E+05", "-1.50e-3", "10.01")),
        *((text, False) for text in ("01", "-", "1.", ".5", "+1", "1e", "0x1", "1e1.5", "", "--1", "NaN")),
    ],
)
def test_any_number_is_what_json_calls_one(text, valid):
    assert takes(Number(), text) == valid


@pytest.mark.parametrize(
    "number",
    [
        Number(low=Bound(5, False)),
        Number(True),
        Number(False),
        Number(multiples=frozenset({10})),
        Number(excluded=frozenset({1})),
        Number(values=(1, 2.5)),
    ],
)
@pytest.mark.parametrize("text", ["01", "-", "5.", "-05", "+5", "10e", "00", "1,0", "", "-.5", "2.5."])
def test_what_is_no_number_is_never_taken(number, text):
    assert not takes(number, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e22, "10000000000000000000000"),
        (1e-7, "0.0000001"),
        (2.0, "2"),
        (-0.0, "0"),
        (1.50, "1.5"),
        (0, "0"),
    ],
)
def test_plain_writes_numbers_out(value, text):
    assert plain(value) == text


def test_long_lists_of_numbers_take_time_in_proportion(backend):
    def seconds(count):
        schema = {"type": "integer", "minimum": 1, "enum": list(range(count))}
        start = time.process_time()
        backend.compile(OutputSpec.json_schema(schema))
        return time.process_time() - start

    seconds(10)
    assert seconds(8_000) < 40 * max(seconds(800), 0.01)
