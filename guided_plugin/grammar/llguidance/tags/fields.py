"""What the formats of a structural tag share: checked fields, errors with places,
tokens.

Depends on nodes. An UnsupportedSpecError says that one grammar can't express a tag:
another backend may. Malformed tags are GrammarErrors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from guided_plugin.errors import GrammarError, UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Control,
    Names,
    Node,
    Path,
    Text,
)
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import pointer

Fields = Mapping[str, Any]


class Reading:
    """One structural tag while it is read."""

    def __init__(
        self,
        controls: Mapping[int, str],
        formats: Mapping[
            str, tuple[tuple[str, ...], Callable[[Reading, Fields, Path], Node]]
        ],
        spec: OutputSpec,
    ) -> None:
        """`controls`: names of control tokens, by id. `formats`: the fields of each
        type, and its reader."""
        by_name = {
            name: token for token, name in sorted(controls.items(), reverse=True)
        }
        self.names = Names(by_name)
        self.whitespace = spec.layout
        self.strict = spec.closed
        self.ends: list[str] = []
        """Texts that end the innermost tag around what is read now."""
        self._controls = controls
        self._by_name = by_name
        self._formats = formats

    def format(self, node: Any, path: Path) -> Node:
        """A format of any type."""
        kind = node.get("type") if isinstance(node, Mapping) else None
        found = self._formats.get(kind) if isinstance(kind, str) else None
        if found is None:
            raise refusal(f"a format of type {shown(kind)}", path)
        keys, read = found
        known(node, ("type", *keys), path)
        try:
            return read(self, node, path)
        except UnsupportedSpecError as error:
            if error.where.startswith("#"):
                raise
            raise refusal(error.what, path, error.hint) from None

    def part(self, node: Fields, key: str, path: Path) -> Node:
        """A format in a field."""
        return self.format(node.get(key), (*path, key))

    def endings(self, node: Fields, path: Path) -> list[Node]:
        """The ends of a tag."""
        end = node.get("end", "")
        if isinstance(end, Mapping):
            return [self.format(end, (*path, "end"))]
        ends = end if isinstance(end, list) else [end]
        if not ends or not all(isinstance(text, str) for text in ends):
            raise malformed(
                "must be a string, a list of strings or a token", (*path, "end")
            )
        return [Text(text) if text else EMPTY for text in ends]

    def tokens(self, node: Fields, key: str, path: Path) -> set[int]:
        """A list of control tokens."""
        return {
            self.token(token, (*path, key)).token
            for token in listed(node, key, path, (int, str))
        }

    def token(self, token: Any, path: Path) -> Control:
        """A control token by its id or name."""
        found = self._by_name.get(token) if isinstance(token, str) else token
        if (
            isinstance(found, bool)
            or not isinstance(found, int)
            or found not in self._controls
        ):
            raise refusal(
                f"a token that is not a control token, or ends the output: {shown(token)}",
                path,
            )
        return Control(found)


_OTHERWISE = "leave it out, or write it in another way: docs/specs.md lists the formats"
_FORMS = "docs/specs.md lists the forms of structural tags"


def refusal(what: str, path: Path, hint: str = _OTHERWISE) -> UnsupportedSpecError:
    """An error about something that one grammar can't express."""
    return UnsupportedSpecError(
        f"{what} is not supported by llguidance", where=pointer(path), hint=hint
    )


def malformed(what: str, path: Path, hint: str = _FORMS) -> GrammarError:
    """An error about something that is no structural tag."""
    return GrammarError(what, where=pointer(path), hint=hint)


def known(node: Fields, keys: tuple[str, ...], path: Path) -> None:
    """Refuse fields that nothing here reads."""
    unknown = next((key for key in node if key not in keys), None)
    if unknown is not None:
        raise refusal("a field of this name", (*path, unknown))


def listed(
    node: Fields, key: str, path: Path, kind: type | tuple[type, ...]
) -> list[Any]:
    """A list of things of one kind; empty where the field is missing."""
    found = node.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise malformed("is a list of something else", (*path, key))
    return found


def texts(node: Fields, key: str, path: Path) -> list[str]:
    """A list of texts that are not empty."""
    found = listed(node, key, path, str)
    if not all(found):
        raise malformed("must not have empty texts", (*path, key))
    return found


def flag(node: Fields, key: str, path: Path, *, default: bool = False) -> bool:
    """A field that is true or false."""
    found = node.get(key, default)
    if not isinstance(found, bool):
        raise malformed("must be true or false", (*path, key))
    return found


def text_of(node: Fields, key: str, path: Path) -> str:
    """A field that is a text."""
    found = node.get(key)
    if not isinstance(found, str):
        raise malformed("must be a string", (*path, key))
    return found
