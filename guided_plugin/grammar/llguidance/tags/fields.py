"""The fields of the formats of a structural tag: what each must hold, and errors with
places.

Depends on nodes. An UnsupportedSpecError says that one grammar can't express a tag:
another backend may. Malformed tags are GrammarErrors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import GrammarError, UnsupportedSpecError, shown
from guided_plugin.spec.references import Path, pointer

OTHERWISE = "leave it out, or write it in another way: docs/specs.md lists the formats"
_FORMS = "docs/specs.md lists the forms of structural tags"

Values = Mapping[str, Any]


def refusal(what: str, path: Path, hint: str = OTHERWISE) -> UnsupportedSpecError:
    """An error about something that one grammar can't express."""
    return UnsupportedSpecError(
        f"{what} is not supported by llguidance", where=pointer(path), hint=hint
    )


def malformed(what: str, path: Path) -> GrammarError:
    """An error about something that is not a structural tag."""
    return GrammarError(what, where=pointer(path), hint=_FORMS)


@dataclass(frozen=True, slots=True)
class Field:
    """The rule for a field; a field that is left out holds the default."""

    fits: Callable[[Any], object]
    """It is true of the values that the field may hold."""
    complaint: str
    """The complaint about any other value."""
    default: Any = None
    error: Callable[[str, Path], GrammarError] = malformed


def checked(node: Values, fields: Mapping[str, Field], path: Path) -> Values:
    """The values of all fields of a format. Fields that nothing here reads are
    refused."""
    for name in node:
        if name not in fields and name != "type":
            raise refusal("a field of this name", (*path, name))
    values = {}
    for name, field in fields.items():
        value = node.get(name, field.default)
        if not field.fits(value):
            raise field.error(f"{field.complaint}: {shown(value)}", (*path, name))
        values[name] = value
    return values


def is_text(value: Any) -> bool:
    """Tell whether a value is a text that an output can hold: a string without lone
    surrogates."""
    return isinstance(value, str) and not any("\ud800" <= x <= "\udfff" for x in value)


def _are_texts(value: Any) -> bool:
    """Tell whether a value is a list of texts."""
    return isinstance(value, list) and all(map(is_text, value))


def _is_part(value: Any) -> bool:
    """Tell whether a value may be a format."""
    return isinstance(value, dict)


TEXT = Field(is_text, "must be a string without lone surrogates")
PATTERN = Field(lambda value: value and is_text(value), "must be a regular expression")
TEXTS = Field(
    lambda value: _are_texts(value) and all(value),
    "must be a list of texts that are not empty",
    [],
)
ENDS = Field(
    lambda value: is_text(value) or (value and _are_texts(value)),
    "must be a string, or a list of strings",
    "",
)
FLAG = Field(lambda value: isinstance(value, bool), "must be true or false", False)
PART = Field(_is_part, "must be a format")
PARTS = Field(
    lambda value: isinstance(value, list) and value and all(map(_is_part, value)),
    "must be a list of formats that is not empty",
)
SCHEMA = Field(lambda value: isinstance(value, (bool, dict)), "must be a JSON Schema")
UNUSED = Field(
    lambda value: value in (None, []), "a value of this field", error=refusal
)
