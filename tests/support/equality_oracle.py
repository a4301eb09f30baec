"""What JSON Schema says of an instance: the `jsonschema` package, with its known inexactness mended.

Exact decimals, ECMA's regular expressions, uniqueness that tells 1 from true at any depth, the enforced
formats in every draft, and the older forms of `items` and `dependencies` where a newer draft is named.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import jsonschema
from equality_formats import FORMATS
from equality_unevaluated import unevaluated_items, unevaluated_properties
from jsonschema import _keywords, _legacy_keywords, validators

from guided_plugin.spec.schema import resolve_pointer, walk

__all__ = ["OracleError", "ecma_to_python", "oracle", "read_exactly"]

_MOST_DIGITS = 5_000
"""Numbers with a larger exponent are not written out."""


class OracleError(Exception):
    """This schema, or this instance, is beyond the oracle."""


def oracle(schema: Any) -> Callable[[Any], bool]:
    """Whether an instance is valid, for a schema of any draft. Siblings of $ref count from 2019-09 on.

    Numbers are compared as decimals: those of an instance should be read with `read_exactly`.
    """
    base = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        # Without formats: patterns are ECMA's, and read below.
        base.check_schema(_modern(schema), format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        raise OracleError(f"no valid schema: {error.message[:200]}") from error
    keywords: dict[str, Any] = {"multipleOf": _multiple_of, "uniqueItems": _unique}
    if base in (jsonschema.Draft201909Validator, jsonschema.Draft202012Validator):
        keywords["dependencies"] = _legacy_keywords.dependencies_draft4_draft6_draft7
        keywords["unevaluatedProperties"] = unevaluated_properties
        keywords["unevaluatedItems"] = unevaluated_items
    if base is jsonschema.Draft202012Validator:
        keywords["items"] = _items
        keywords["additionalItems"] = _additional_items
    checker = jsonschema.FormatChecker(formats=())
    for name, check in FORMATS.items():
        checker.checks(name)(_on_strings(check))
    types = base.TYPE_CHECKER
    if base not in (jsonschema.Draft3Validator, jsonschema.Draft4Validator):
        types = types.redefine("integer", _is_integer)
    exact = _as_decimals(_with_python_patterns(schema))
    if isinstance(exact, dict):
        # A reference to a schema that names its draft would end in the package's own validator of that draft.
        exact.pop("$schema", None)
    validator = validators.extend(base, keywords, type_checker=types)(exact, format_checker=checker)

    def valid(instance: Any) -> bool:
        try:
            return bool(validator.is_valid(_as_decimals(instance)))
        except RecursionError as error:
            raise OracleError("recursion without an end") from error
        except Exception as error:
            if type(error).__module__.startswith(("jsonschema", "referencing")):
                raise OracleError(f"a reference that leads nowhere: {error}") from error
            raise

    return valid


def _on_strings(check: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, str) or check(value)


def _modern(schema: Any) -> Any:
    """The schema without what its metaschema refuses and this oracle takes all the same."""
    result = copy.deepcopy(schema)
    for _, node in walk(result):
        if isinstance(node, dict) and isinstance(node.get("items"), list):
            node["items"] = {"allOf": node["items"]} if node["items"] else {}
    return result


def read_exactly(text: str | bytes, **options: Any) -> Any:
    """The value of a JSON text, with numbers as the text has them."""
    return json.loads(text, parse_float=_decimal, **options)


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise OracleError(f"the number {text[:80]}") from None
    if value and abs(value.adjusted()) > _MOST_DIGITS:
        raise OracleError(f"the number {text[:80]}")
    return value


def _as_decimals(value: Any) -> Any:
    """A copy with decimals in place of floats: 0.1 is a tenth."""
    if isinstance(value, dict):
        return {name: _as_decimals(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_as_decimals(child) for child in value]
    return _decimal(repr(value)) if isinstance(value, float) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_integer(checker: Any, value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if _is_number(instance) and _exact(instance) % _exact(divisor):
        yield jsonschema.ValidationError(f"{instance} is no multiple of {divisor}")


def _exact(number: int | float | Decimal) -> Fraction:
    """The number as its text says: 0.1 is a tenth."""
    return Fraction(Decimal(repr(number)) if isinstance(number, float) else number)


def _unique(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if wanted and isinstance(instance, list):
        keys = [_identity(item) for item in instance]
        if len(set(keys)) < len(keys):
            yield jsonschema.ValidationError("holds an item twice")


def _identity(value: Any) -> Any:
    """Equal for equal JSON values only: 1 is 1.0 and not true."""
    if isinstance(value, dict):
        return ("object", frozenset((name, _identity(child)) for name, child in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_identity, value)))
    return ("number", _exact(value)) if _is_number(value) else (type(value).__name__, value)


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(items, list):
        yield from _legacy_keywords.items_draft6_draft7_draft201909(validator, items, instance, schema)
    else:
        yield from _keywords.items(validator, items, instance, schema)


def _additional_items(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(schema.get("items"), list):
        yield from _legacy_keywords.additionalItems(validator, rest, instance, schema)


def _with_python_patterns(schema: Any) -> Any:
    """A copy of the schema whose patterns mean to Python what they mean to ECMA."""
    result = copy.deepcopy(schema)
    pending, seen = [result], set()
    while pending:
        for _, node in walk(pending.pop()):
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node.get("pattern"), str):
                node["pattern"] = ecma_to_python(node["pattern"])
            if isinstance(node.get("patternProperties"), Mapping):
                node["patternProperties"] = {
                    ecma_to_python(source): child for source, child in node["patternProperties"].items()
                }
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/"):
                # It may point to a place where no keyword keeps schemas.
                try:
                    pending.append(resolve_pointer(result, reference))
                except KeyError:
                    continue
    return result


_SPACES = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NO_SPACES = (
    r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    r"\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
)
_CLASSES = {
    "d": "0-9",
    "D": r"\x00-/:-\U0010ffff",
    "w": "A-Za-z0-9_",
    "W": r"\x00-/:-@\[-^`{-\U0010ffff",
    "s": _SPACES,
    "S": _NO_SPACES,
}
_ESCAPE = re.compile(
    r"""\\(?: (?P<class>[dDwWsS]) | (?P<property>[pP]\{[^}]*\}) | u\{(?P<long>[0-9A-Fa-f]+)\}
    | c(?P<control>[A-Za-z]) | (?P<kept>u[0-9A-Fa-f]{4} | x[0-9A-Fa-f]{2} | [bBnrtfv1-9])
    | (?P<end>[AZz]) | (?P<zero>0) | (?P<plain>[^A-Za-z0-9]) )""",
    re.VERBOSE | re.DOTALL,
)
_OUTSIDE = {
    "[^]": r"[\x00-\U0010ffff]",
    "[]": "(?!)",
    "(?<=": "(?<=",
    "(?<!": "(?<!",
    "(?<": "(?P<",
    "{,": r"\{,",
    "$": r"\Z",
    ".": r"[^\n\r\u2028\u2029]",
}
"""What means something else to Python, the longest first."""


def ecma_to_python(source: str) -> str:
    """A regular expression of ECMA 262 in Python's syntax. Never empty: `jsonschema` would take that for no
    pattern.
    """
    result, at, inside = "(?:)" if not source else "", 0, False
    while at < len(source):
        if source[at] == "\\":
            escape = _ESCAPE.match(source, at)
            if escape is None:
                raise OracleError(f"the escape at {at} in {source[:80]!r}")
            result, at = result + _escaped(escape, inside), escape.end()
            continue
        mark = next((mark for mark in _OUTSIDE if not inside and source.startswith(mark, at)), source[at])
        if inside:
            result += re.escape(mark) if mark in "[&~|" else mark
            inside = mark != "]"
        else:
            result += _OUTSIDE.get(mark, mark)
            inside = mark == "["
        if inside and mark == "[" and source.startswith("^", at + 1):
            result, mark = result + "^", "[^"
        at += len(mark)
    try:
        re.compile(result)
    except (re.error, OverflowError, RecursionError) as error:
        raise OracleError(f"no regular expression: {source[:80]!r}: {error}") from error
    return result


def _escaped(escape: re.Match[str], inside: bool) -> str:
    text = escape[escape.lastgroup or 0]
    match escape.lastgroup:
        case "class" | "property":
            ranges = _CLASSES.get(text) or _property(text)
            return ranges if inside else f"[{ranges}]"
        case "long":
            return f"\\U{int(text, 16):08x}"
        case "control":
            return f"\\x{ord(text) % 32:02x}"
        case "zero":
            return r"\x00"
        case "end":
            return r"\A" if text == "A" else r"\Z"
        case "plain":
            return re.escape(text)
    return f"\\{text}"


@functools.lru_cache(maxsize=64)
def _property(name: str) -> str:
    """The ranges of a general category."""
    long = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z"}
    wanted = long.get(name[2:-1], name[2:-1])
    if not re.fullmatch("[LMNPSZC][a-z&]?", wanted):
        raise OracleError(f"the property \\{name}")
    ranges: list[list[int]] = []
    for code in range(0x110000):
        if unicodedata.category(chr(code)).startswith(wanted) == (name[0] == "p"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
