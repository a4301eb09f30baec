"""Which instances a JSON Schema allows, of any draft from 4 on: what grammars are
judged by.

`jsonschema-rs` decides, which shares nothing with this package. Numbers are exact where
they are read with `read_exactly`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import jsonschema_rs

from guided_plugin.spec.schema import walk

_MOST_DIGITS = 5_000
"""Numbers with a larger exponent are not written out."""
_NAMES = (
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
)
FORMATS: dict[str, Callable[[str], bool]] = {
    name: jsonschema_rs.validator_for({"format": name}, validate_formats=True).is_valid
    for name in _NAMES
}
"""The formats that are enforced, in every draft: some came with 2019-09."""


def _email(text, mailbox=FORMATS["email"]):
    """RFC 5321, of any length in all: what it says of that is about paths."""
    local, at, domain = text.rpartition("@")
    labels = [domain] if domain.startswith("[") else domain.split(".")
    return (
        bool(at)
        and mailbox(f"{local}@a")
        and all(mailbox(f"a@{label}") for label in labels)
    )


FORMATS["email"] = _email
_PIECES = re.compile(r"\\[pPu]\{[^}]*\}|\\.|\[\^\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)

_IN_RUST = {r"\0": r"\x00", "[^]": r"[\s\S]", "{": r"\{", "}": r"\}"}
_IN_RUST |= {
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    ".": "[^\n\r\u2028\u2029]",
}


def _bound(holds, exclusive=""):
    """A keyword of numbers, exactly: jsonschema-rs compares them as floats.

    Args:
        exclusive: the flag of draft 4 that leaves out the bound itself.
    """

    class Keyword:
        def __init__(self, parent, value, path):
            # In draft 4 the exclusive ones are those flags.
            self.limit = None if isinstance(value, bool) else Fraction(str(value))
            self.open = parent.get(exclusive) is True

        def validate(self, instance):
            if (
                self.limit is None
                or isinstance(instance, bool)
                or not isinstance(instance, int | float | Decimal)
            ):
                return
            number = Fraction(str(instance or 0))  # 0e9999999 is read as 0
            if not holds(number, self.limit) or (self.open and number == self.limit):
                raise ValueError("out of bounds")

    return Keyword


_NUMBERS = {
    "minimum": _bound(lambda number, limit: number >= limit, "exclusiveMinimum"),
    "maximum": _bound(lambda number, limit: number <= limit, "exclusiveMaximum"),
    "exclusiveMinimum": _bound(lambda number, limit: number > limit),
    "exclusiveMaximum": _bound(lambda number, limit: number < limit),
    "multipleOf": _bound(lambda number, step: (number / step).denominator == 1),
}


class OracleError(Exception):
    """This schema, or this instance, is beyond the oracle."""


def oracle(schema):
    """Whether an instance is valid. Siblings of $ref count from 2019-09 on."""
    try:
        validator = jsonschema_rs.validator_for(
            _readable(schema),
            formats=FORMATS,
            keywords=_NUMBERS,
            validate_formats=True,
            offline=True,
        )
    except (
        jsonschema_rs.ValidationError,
        jsonschema_rs.ReferencingError,
        ValueError,
    ) as error:
        raise OracleError(f"no valid schema: {str(error)[:200]}") from error
    return lambda value: _is_text(value) and validator.is_valid(value)


def _is_text(value):
    """Not where a string has lone surrogates: no text in UTF-8 has that value."""
    try:
        return bool(json.dumps(value, ensure_ascii=False, default=str).encode())
    except UnicodeEncodeError:
        return False


def _readable(schema):
    """A copy in which lists of `items` have the name of 2020-12, and patterns are in
    Rust's syntax."""
    result = copy.deepcopy(schema)
    latest = (
        "2020-12" in str(schema.get("$schema", "2020-12"))
        if isinstance(schema, dict)
        else False
    )
    for _, node in walk(result):
        if not isinstance(node, dict):
            continue
        if latest and isinstance(node.get("items"), list):
            node["prefixItems"] = node.pop("items")
            if "additionalItems" in node:
                node["items"] = node.pop("additionalItems")
        if isinstance(node.get("pattern"), str):
            node["pattern"] = _for_rust(node["pattern"])
        if isinstance(node.get("patternProperties"), dict):
            pairs = node["patternProperties"].items()
            node["patternProperties"] = {
                _for_rust(source): child for source, child in pairs
            }
    return result


def _for_rust(pattern):
    """A pattern with what Rust reads otherwise spelt out: classes in classes, lone
    braces, NUL, words, ends of lines."""
    result = ""
    inside = False
    for piece in _PIECES.findall(pattern):
        if inside and piece in "[&~":
            result += f"\\{piece}"
            continue
        read = _IN_RUST.get(piece, piece)
        result += (
            read.strip("[]")
            if inside and piece in (r"\w", r"\d")
            else piece
            if inside
            else read
        )
        inside = piece == "[" or (inside and piece != "]")
    return result


def read_exactly(text, **options):
    """The value of a JSON text, with numbers as the text has them."""
    return json.loads(text, parse_float=_decimal, **options)


def _decimal(text):
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise OracleError(f"the number {text[:80]}") from None
    if value and abs(value.adjusted()) > _MOST_DIGITS:
        raise OracleError(f"the number {text[:80]}")
    return value
