"""What xgrammar would drop from a schema of one type, or misread. Depends on rewrites and spec.

Figures are those of xgrammar 0.2.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.xgrammar.rewrites.values import canonical
from guided_plugin.spec.arithmetic import exact
from guided_plugin.spec.schema import pointer

_Path = tuple[str | int, ...]

# Larger divisors are dropped, and so are all of a range of 10,000 numbers or with an open end.
_MOST_DIVISOR = 1024
_WIDEST_RANGE = 5_000
# Bounds of numbers are read as doubles, and compared to six decimals; those of integers have 64 bits.
_STEPS = 10**6
_MOST_WITH_DECIMALS, _MOST_WITHOUT, _MOST_INTEGER = 10**9, 10**15, 2**63 - 1
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def check_string(node: Mapping[str, Any], path: _Path) -> None:
    """Refuse a string's keywords next to each other."""
    read = [keyword for keyword in ("pattern", "format", "minLength", "maxLength") if keyword in node]
    if len(read) > 1 and read[0] in ("pattern", "format"):
        hint = "put the length into the pattern, as in ^[a-z]{1,8}$"
        raise refusal(f"`{read[0]}` next to `{read[1]}`", (*path, read[0]), hint)
    if "format" in read:
        # What is enforced is a pattern by now. xgrammar's own reading of formats differs from theirs.
        raise refusal("`format` in a schema with named parts", (*path, "format"), "write it as a pattern")


def check_number(node: Mapping[str, Any], types: list[str], path: _Path) -> None:
    """Refuse bounds and divisors that would be rounded or dropped."""
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(node.get(keyword), bool):
            raise refusal(f"a boolean `{keyword}`", (*path, keyword), "write the bound itself")
    if not {"integer", "number"}.intersection(types):
        return
    _check_bounds(node, types, path)
    if "multipleOf" in node:
        _check_divisor(node, types, path)


def _check_bounds(node: Mapping[str, Any], types: list[str], path: _Path) -> None:
    for keyword in (*_LOW, *_HIGH):
        if keyword in node and not _is_exact(node[keyword], types):
            what = f"`{keyword}` {shown(node[keyword])}"
            hint = "use a bound with at most nine digits before the point and six behind it"
            raise refusal(what, (*path, keyword), hint)
    if "number" in types and not _has_room(node):
        what = "a range without any number of six decimals"
        raise refusal(what, path, "widen it, or list the numbers in an enum")


def _is_exact(bound: int | float, types: list[str]) -> bool:
    """Whether xgrammar compares with a bound as it is written."""
    value = exact(bound)
    if "integer" in types and (value.denominator != 1 or abs(value) > _MOST_INTEGER):
        return False
    if "number" not in types or (value.denominator == 1 and abs(value) <= _MOST_WITHOUT):
        return True
    return abs(value) <= _MOST_WITH_DECIMALS and (value * _STEPS).denominator == 1


def _has_room(node: Mapping[str, Any]) -> bool:
    """Whether a number of six decimals lies between the bounds; if not, xgrammar takes the empty text."""
    low = [int(exact(node[key]) * _STEPS) + (key == "exclusiveMinimum") for key in _LOW if key in node]
    high = [int(exact(node[key]) * _STEPS) - (key == "exclusiveMaximum") for key in _HIGH if key in node]
    return not low or not high or max(low) <= min(high)


def _check_divisor(node: Mapping[str, Any], types: list[str], path: _Path) -> None:
    where, divisor = (*path, "multipleOf"), node["multipleOf"]
    if "number" in types:
        raise refusal("`multipleOf` of numbers", where, "use integers")
    if divisor % 1 or divisor > _MOST_DIVISOR:
        hint = f"use a whole number from 1 to {_MOST_DIVISOR}, or an enum"
        raise refusal(f"`multipleOf` {shown(divisor)}", where, hint)
    lowest = [node[keyword] for keyword in _LOW if keyword in node]
    highest = [node[keyword] for keyword in _HIGH if keyword in node]
    if bool(lowest) != bool(highest) or (lowest and min(highest) - max(lowest) > _WIDEST_RANGE):
        raise refusal(
            f"`multipleOf` next to `{'minimum' if lowest else 'maximum'}`",
            where,
            f"leave both bounds out, or give two that are at most {_WIDEST_RANGE} apart",
        )


def check_array(node: Mapping[str, Any], path: _Path) -> None:
    """Refuse what needs a memory, and the older form of prefixItems."""
    if node.get("uniqueItems"):
        raise refusal("`uniqueItems`", (*path, "uniqueItems"), "no grammar can: check it afterwards")
    if isinstance(node.get("items"), list):
        raise refusal("a list in `items`", (*path, "items"), "call it prefixItems")


def check_object(node: Mapping[str, Any], path: _Path, *, strict: bool) -> None:
    """Refuse an object's keywords next to each other, and counts that a repeated name would fill."""
    described, required = node.get("properties") or {}, node.get("required")
    wanted = set(required) if isinstance(required, list) else set()
    missing = sorted(wanted - set(described))
    if missing:
        raise refusal(
            f"`required` property {shown(missing[0])} that `properties` doesn't describe",
            (*path, "required"),
            f'add "{missing[0]}": {{}} to properties',
        )
    is_open = "propertyNames" in node or node.get("additionalProperties", not strict) is not False
    # One name that `properties` doesn't describe is still a different one.
    if is_open and node.get("minProperties", 0) > len(wanted) + 1:
        hint = "describe the properties and set additionalProperties to false"
        what = f"`minProperties` {node['minProperties']} of an object whose names may be repeated"
        raise refusal(what, (*path, "minProperties"), hint)
    _check_members(node, path, described)
    if "propertyNames" in node:
        _check_property_names(node["propertyNames"], (*path, "propertyNames"))


def _check_members(node: Mapping[str, Any], path: _Path, described: Mapping[str, Any]) -> None:
    where = (*path, "patternProperties")
    others = ["properties"] if described else []
    others += [key for key in ("propertyNames", "minProperties", "maxProperties") if key in node]
    if "patternProperties" in node and others:
        raise refusal(f"`patternProperties` next to `{others[0]}`", where, "describe them apart")
    if "propertyNames" in node and described:
        raise refusal("`propertyNames` next to `properties`", (*path, "propertyNames"), "leave one out")
    if "propertyNames" in node and node.get("additionalProperties") is False:
        what = "`additionalProperties` next to `propertyNames`"
        raise refusal(what, (*path, "additionalProperties"), "leave one out")
    if len({canonical(value) for value in (node.get("patternProperties") or {}).values()}) > 1:
        what = "`patternProperties` with several patterns, of which two may match one name,"
        raise refusal(what, where, "use one pattern")


def _check_property_names(names: Any, path: _Path) -> None:
    """Refuse names that xgrammar might take for values of another type than strings."""
    fine = isinstance(names, dict) and {"$ref", "anyOf", "oneOf", "allOf"}.isdisjoint(names)
    if fine and {"const", "enum"}.isdisjoint(names):
        fine = names.get("type") == "string"
    elif fine:
        values = [names["const"]] if "const" in names else names["enum"]
        fine = all(isinstance(value, str) for value in values)
    if not fine:
        hint = "say what strings they are: with a pattern, lengths or a list of values"
        raise refusal("`propertyNames` that may not be strings", path, hint)


def refusal(what: str, path: _Path, hint: str) -> UnsupportedSpecError:
    """The error for something that xgrammar would drop."""
    return UnsupportedSpecError(f"{what} is not enforced by xgrammar", where=pointer(path), hint=hint)
