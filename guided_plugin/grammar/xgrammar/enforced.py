"""What xgrammar enforces exactly, as the texts that it reads; everything else is
refused with its place.

Of schemas that is the list below: xgrammar drops other keywords, or reads them
otherwise next to each other. Regular expressions are written as EBNF, because
xgrammar's own reading of them takes more texts. Compared with `jsonschema` and `re` for
xgrammar 0.2.8 (tests/grammar/xgrammar). Depends on spec.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from guided_plugin.errors import UnsupportedSpecError, place_in, shown
from guided_plugin.keywords import ASSERTIONS
from guided_plugin.spec.ecma import (
    Alternation,
    Characters,
    Node,
    Ranges,
    Repeat,
    Sequence,
    complement,
    meet,
)
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.languages import whole
from guided_plugin.spec.references import Path
from guided_plugin.spec.schema import pointer, walk

ALONE = ("$ref", "const", "enum", "anyOf")
"""Enforced where no other constraint stands next to it."""

NEXT_TO_TYPE: Mapping[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "string": (),
    "number": (),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
"""Enforced next to each type; arrays need `items`."""

_OTHERWISE = "leave it out, or use the backend llguidance, which enforces more"
_REFERENCE = re.compile(r"#(?:/(?:\$defs|definitions)/[\w.-]+)?")
_LARGEST = 2**53  # xgrammar reads larger numbers of an enum as doubles


def check_schema_enforced(document: Any, *, strict: bool) -> None:
    """Raise an UnsupportedSpecError for what is not on the list."""
    for path, node in walk(document):
        if isinstance(node, bool):
            if path[-1:] != ("additionalProperties",):
                raise refusal("a schema of any value", path, "say which types it has")
            continue
        _check_names(node, path)
        asserted = [
            keyword
            for keyword in node
            if keyword in ASSERTIONS
            and (keyword != "format" or node[keyword] in FORMATS)
        ]
        alone = next((keyword for keyword in ALONE if keyword in asserted), None)
        allowed = (alone,) if alone else ("type", *_next_to(node, path))
        for keyword in asserted:
            if keyword not in allowed:
                beside = f" next to `{alone}`" if alone else ""
                raise refusal(f"`{keyword}`{beside}", (*path, keyword))
        if alone is None and "type" not in node:
            raise refusal("a schema without `type`", path, "say which types it has")
        if alone is None:
            _check_object(node, path, strict=strict)
        elif alone == "$ref":
            _check_reference(document, node["$ref"], (*path, "$ref"))
        elif alone != "anyOf":
            _check_values(
                node["enum"] if alone == "enum" else [node["const"]], (*path, alone)
            )


def _next_to(node: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    named = node.get("type", [])
    if isinstance(named, str):
        return NEXT_TO_TYPE[named]
    if {"array", "object"} & set(named):
        raise refusal(
            "a list of types with `array` or `object`", (*path, "type"), "use anyOf"
        )
    return ()


def _check_object(node: Mapping[str, Any], path: Path, *, strict: bool) -> None:
    """Refuse arrays and objects whose members xgrammar would write in another way, and
    bounds it rounds."""
    for keyword in NEXT_TO_TYPE["integer"]:
        bound = node.get(keyword, 0)
        if isinstance(bound, bool) or bound % 1 or abs(bound) > _LARGEST:
            raise refusal(
                f"`{keyword}` {shown(bound)}",
                (*path, keyword),
                "use a whole number below 2^53",
            )
    if node.get("type") == "array":
        if not isinstance(node.get("items"), dict):
            raise refusal("an array without one schema in `items`", path)
    elif node.get("type") == "object":
        described = node.get("properties") or {}
        others = node.get("additionalProperties", not (strict and described))
        required = node.get("required", ())
        missing = (
            [name for name in required if name not in described]
            if required is not True
            else [""]
        )
        if missing and (
            "additionalProperties" in node or not described or required is True
        ):
            what = f"`required` property {shown(missing[0])} that `properties` does not describe"
            raise refusal(what, (*path, "required"), "describe it in `properties`")
        if described and others is not False:
            what = "`properties` next to additional ones"
            raise refusal(
                what, (*path, "properties"), "set additionalProperties to false"
            )


_VALUE = "any value"  # not a name that a reference of a client may have
_ANY = {"$ref": f"#/$defs/{_VALUE}"}
_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_LIST = {"type": "array", "items": _ANY}
_MAP = {"type": "object", "additionalProperties": _ANY}


def spelt_out(document: dict[str, Any]) -> dict[str, Any]:
    """A schema on the list, with its open objects and the names that `required` alone
    has spelt out: xgrammar drops such names, and its own rule for any value writes ", "
    whatever the separators are."""
    document = copy.deepcopy(document)
    objects = [
        node
        for _, node in walk(document)
        if isinstance(node, dict) and node.get("type") == "object"
    ]
    for node in objects:
        if node.get("properties"):
            lacking = [
                name
                for name in node.get("required", ())
                if name not in node["properties"]
            ]
            node["properties"] |= dict.fromkeys(lacking, _ANY)
        elif node.get("additionalProperties", True) is True:
            node["additionalProperties"] = _ANY
    document["$defs"] = {
        **document.get("$defs", {}),
        _VALUE: {"anyOf": [_SCALAR, _MAP, _LIST]},
    }
    return document


def _check_names(node: Mapping[str, Any], path: Path) -> None:
    """Refuse names with which references may mean another schema."""
    for keyword in ("$id", "id", "$anchor", "$dynamicAnchor"):
        if path and isinstance(node.get(keyword), str):
            raise refusal(
                f"`{keyword}` inside a schema", (*path, keyword), "leave it out"
            )


def _check_reference(document: Any, reference: Any, path: Path) -> None:
    seen = set()
    while isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        if not _REFERENCE.fullmatch(reference):
            break
        target = document
        for name in reference.split("/")[1:]:
            target = target.get(name) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            break
        if "$ref" not in target:
            return
        reference = target["$ref"]
    hint = "copy the schema that it means into $defs and write #/$defs/Name"
    raise refusal(f"`$ref` {shown(reference)}", path, hint)


def _check_values(values: list[Any], path: Path) -> None:
    for value in values:
        plain = value is None or isinstance(value, (str, bool)) or type(value) is int
        if not plain or (type(value) is int and abs(value) > _LARGEST):
            raise refusal(
                f"the value {shown(value)}",
                path,
                "list texts, whole numbers, true, false and null",
            )
        if isinstance(value, str) and any(
            0xD800 <= ord(character) <= 0xDFFF for character in value
        ):
            raise refusal(f"a lone surrogate in {shown(value)}", path)


def refusal(what: str, path: Path, hint: str = _OTHERWISE) -> UnsupportedSpecError:
    """The error for something that is not on the list."""
    return UnsupportedSpecError(
        f"{what} is not enforced by xgrammar", where=pointer(path), hint=hint
    )


def choice_ebnf(choices: list[str]) -> str:
    """A grammar of some texts."""
    texts = (
        "".join(_code(ord(character)) for character in choice) for choice in choices
    )
    return "root ::= " + " | ".join(f'"{text}"' for text in texts)


_TEXT: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""All but surrogates, which are not characters."""


def regex_ebnf(source: str) -> str:
    """A grammar of the texts that a regular expression matches from end to end."""
    try:
        text = _expression(whole(source))
    except UnsupportedSpecError as error:
        raise UnsupportedSpecError(error.what, where="regex", hint=error.hint) from None
    if text is None:
        hint = "look for an empty class, or for anchors in the middle"
        raise UnsupportedSpecError(
            f"no text matches {shown(source)}", where="regex", hint=hint
        )
    return f"root ::= {text}"


def _expression(node: Node) -> str | None:
    """A tree as EBNF; None where it matches nothing."""
    match node:
        case Characters():
            if node.properties:
                what = f"\\{node.properties[0]} is not enforced by xgrammar"
                raise UnsupportedSpecError(what, where="regex", hint=_OTHERWISE)
            ranges = meet(
                complement(node.ranges) if node.negated else node.ranges, _TEXT
            )
            return (
                "["
                + "".join(f"{_code(low)}-{_code(high)}" for low, high in ranges)
                + "]"
                if ranges
                else None
            )
        case Sequence(parts):
            texts = [_expression(part) for part in parts]
            return None if None in texts else " ".join(filter(None, texts)) or '""'
        case Alternation(options):
            found = [
                text for option in options if (text := _expression(option)) is not None
            ]
            return f"({' | '.join(found)})" if found else None
        case Repeat(part, low, high):
            text = _expression(part)
            if text is None or high == 0:
                return None if text is None and low else '""'
            return f"({text}){{{low},{'' if high is None else high}}}"
    raise UnsupportedSpecError(
        "lookahead is not enforced by xgrammar", where="regex", hint=_OTHERWISE
    )


def _code(code: int) -> str:
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


_PIECE = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*) | (?P<head>[\w.-]+\s*::=)
    | (?P<refused>\w*(?:Token|TagDispatch|Regex)\s*\( | "(?:\\.|[^"\\\n])*?\\u[dD][89a-fA-F])
    | (?P<word>[\w.-]+) | (?P<branch>\|) | (?P<open>\() | (?P<close>\))
    | (?P<other>"(?:\\.|[^"\\\n])*" | \[(?:\\.|[^\]\\\n])*\] | \{[^}]*\} | .)""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = (
    (
        '"',
        "half of a character has no bytes",
        "write the whole character, or its code as \\U0001f600",
    ),
    ("Regex", "xgrammar takes more than it says", "write it as texts and classes"),
    (
        "",
        "a token may end the output in the middle",
        "write the text that it stands for in quotes",
    ),
)


def client_ebnf(source: str) -> str:
    """A client's EBNF as xgrammar reads it, with two things that llama.cpp's dialect
    has: `""` for an empty alternative, and a class for a dot. Some things are
    refused."""
    parts: list[str] = []
    before = ""
    last = 0
    for found in [*_PIECE.finditer(source), None]:
        kind, text = (
            (str(found.lastgroup), found[0]) if found is not None else ("head", "")
        )
        if found is not None and kind == "refused":
            why, hint = next(reasons for part, *reasons in _REFUSED if part in text)
            raise UnsupportedSpecError(
                f"`{text.rstrip('( ')}` is not supported: {why}",
                where=place_in("grammar", source, found.start()),
                hint=hint,
            )
        if kind != "skip":
            # An alternative begins after these, and ends before those.
            if before in ("head", "branch", "open") and kind in (
                "head",
                "branch",
                "close",
            ):
                parts[last] += ' ""'
            before = kind
            last = len(parts)
        parts.append(r"[\0-\U0010ffff]" if kind == "word" and text == "." else text)
    return "".join(parts)


_HEX_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)
_UNIT = r"(?:\\U[0-9a-fA-F]{8}|\\u[0-9a-fA-F]{4}|\\.|[^\\])"
_RANGE = re.compile(rf"({_UNIT})(?:-({_UNIT}))?", re.DOTALL)


def exact_ebnf(source: str) -> str:
    r"""EBNF that xgrammar reads as it is meant. It would read more than two digits
    behind `\x`, and classes with surrogates, whose bytes are not UTF-8."""
    return _PIECE.sub(_exact, source)


def _exact(piece: re.Match[str]) -> str:
    if piece[0][0] not in '"[':
        return piece[0]
    text = _HEX_CODE.sub(
        lambda found: rf"\u00{found[1]}" if found[1] else found[0], piece[0]
    )
    if text.startswith("[^"):
        return rf"[^\ud800-\udfff{text[2:]}"
    return text if text[0] == '"' else f"[{_RANGE.sub(_valid_range, text[1:-1])}]"


def _valid_range(found: re.Match[str]) -> str:
    """A range of a class, or one character, without surrogates."""
    low = found[1]
    high = found[2] or found[1]
    first = _value(low)
    last = _value(high)
    if last < 0xD800 or first > 0xDFFF:
        return found[0]
    below = rf"{low}-\ud7ff" if first < 0xD800 else ""
    above = rf"\ue000-{high}" if last > 0xDFFF else ""
    return below + above


def _value(unit: str) -> int:
    """The code point of a character of a class, where it may be next to surrogates."""
    return int(unit[2:], 16) if len(unit) > 2 else ord(unit[-1])
