"""A structural tag's document as nodes. Depends on fields, texts, xml and spec.

Reads what one grammar can express exactly; all else is refused, with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.tags.fields import (
    ENDS,
    FLAG,
    OTHERWISE,
    PART,
    PARTS,
    PATTERN,
    SCHEMA,
    TEXT,
    TEXTS,
    UNUSED,
    Field,
    Values,
    checked,
    malformed,
    refusal,
)
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Free,
    Node,
    Regex,
    Repeat,
    Schema,
    either,
    optional,
    sequence,
)
from guided_plugin.grammar.llguidance.tags.texts import Texts
from guided_plugin.grammar.llguidance.tags.xml import STYLES, xml_elements
from guided_plugin.spec import OutputSpec, ecma
from guided_plugin.spec.languages import nullable, whole
from guided_plugin.spec.references import Path

Ends = tuple[str, ...]
"""Texts of which one comes next; none: anything may."""
_Call = tuple[str, Node]
"""The text that begins a tag, and the rest of it with an end."""

_NOT_ASCII = frozenset(range(128, 256))

_TAG = {"begin": TEXT, "content": PART, "end": ENDS}
_STRUCTURE = {"begin": TEXT, "schema": SCHEMA, "end": ENDS}
"""A tag of the older form."""
_CHOICE = {"at_least_one": FLAG, "stop_after_first": FLAG}
_TRIGGERED = {"triggers": TEXTS, "excludes": TEXTS, **_CHOICE}
_OLDER_FORM = {"structures": PARTS, **_TRIGGERED}
"""The fields of a whole tag of the older form."""

_STYLE = Field(
    lambda style: style == "json" or style in STYLES,
    "a style",
    "json",
    refusal,
)
_JSON_SCHEMA = {
    "json_schema": SCHEMA,
    "style": _STYLE,
    "any_order": FLAG,
    "max_whitespace_cnt": UNUSED,
    "excludes": UNUSED,
}

_FORMATS: Mapping[str, Mapping[str, Field]] = {
    "const_string": {"value": TEXT},
    "json_schema": _JSON_SCHEMA,
    "regex": {"pattern": PATTERN},
    "any_text": {"excludes": TEXTS, "max_tokens": UNUSED, "max_chars": UNUSED},
    "sequence": {"elements": PARTS},
    "or": {"elements": PARTS},
    "optional": {"content": PART},
    "plus": {"content": PART},
    "star": {"content": PART},
    "tag": _TAG,
    "triggered_tags": {"tags": PARTS, **_TRIGGERED},
    "tags_with_separator": {"tags": PARTS, "separator": TEXT, **_CHOICE},
}
"""The fields of each type of format."""

_INSTEAD = {
    "any_tokens": "write any_text: it has no control tokens",
    "dispatch": "write triggered_tags",
    "repeat": "write optional, star or plus, or a sequence",
    "token": "write the token's name as a const_string",
    "token_dispatch": "write triggered_tags with the tokens' names as triggers",
    "token_triggered_tags": "write triggered_tags with the tokens' names as triggers",
}
"""The substitutes for types of formats that are not read."""


class Reader:
    """Reads one structural tag."""

    def __init__(self, spec: OutputSpec, texts: Texts) -> None:
        self._spec = spec
        self._texts = texts
        self._tag_ends: Ends = ()
        """The ends of the innermost tag around what is read now."""

    def document(self) -> Node:
        """The whole tag: a format, or the older form, `structures` with `triggers`."""
        document = self._spec.document()
        if "format" in document:
            return self._format(document["format"], ("format",), ())
        values = checked(document, _OLDER_FORM, ())
        calls = self._calls(values["structures"], _STRUCTURE, ("structures",))
        return self._free_text(calls, values, (), ())

    def _format(self, node: Any, path: Path, ends: Ends) -> Node:
        """A format of any type, with one of the ends behind it: free text is one leaf
        with its end."""
        kind = node.get("type") if isinstance(node, dict) else None
        fields = _FORMATS.get(kind) if isinstance(kind, str) else None
        if fields is None:
            hint = _INSTEAD.get(str(kind), OTHERWISE)
            raise refusal(f"a format of type {shown(kind)}", path, hint)
        values = checked(node, fields, path)
        match kind:
            case "any_text":
                return self._free_text([], values, path, ends)
            case "triggered_tags":
                calls = self._calls(values["tags"], _TAG, (*path, "tags"))
                return self._free_text(calls, values, path, ends)
            case "json_schema" if values["style"] != "json":
                return self._xml(values, path, ends)
            case "sequence":
                return self._sequence(values["elements"], path, ends)
            case "or":
                return either(
                    self._format(element, (*path, "elements", index), ends)
                    for index, element in enumerate(values["elements"])
                )
            case "optional" if ends:
                content = self._content(values, path, ends)
                return either([content, self._texts.one_of(ends)])
        closed = self._closed(str(kind), values, path)
        return sequence([closed, self._texts.one_of(ends)])

    def _closed(self, kind: str, values: Values, path: Path) -> Node:
        """A format that does not end with free text, or that nothing follows."""
        match kind:
            case "const_string":
                return self._texts.spelled(values["value"])
            case "json_schema":
                place = (*path, "json_schema")
                return Schema(values["json_schema"], place, values["any_order"])
            case "regex":
                return _regex(values["pattern"], (*path, "pattern"))
            case "tag":
                return self._written(*self._call(values, path))
            case "tags_with_separator":
                return self._separated(values, path)
            case "optional":
                return optional(self._content(values, path))
            case _:
                low = 1 if kind == "plus" else 0
                return Repeat(self._content(values, path), low, loop=True)

    def _content(self, values: Values, path: Path, ends: Ends = ()) -> Node:
        """The format inside another one."""
        return self._format(values["content"], (*path, "content"), ends)

    def _xml(self, values: Values, path: Path, ends: Ends) -> Node:
        """Properties as XML elements."""
        style = values["style"]
        if values["any_order"] or not self._spec.strict:
            what = f"a style of {shown(style)} with these options"
            hint = "use strict: true and no any_order"
            raise refusal(what, (*path, "style"), hint)
        place = (*path, "json_schema")
        return xml_elements(self._texts, style, values["json_schema"], place, ends)

    def _sequence(self, elements: list[Any], path: Path, ends: Ends) -> Node:
        """Elements are read from the last to the first: a literal text is the end of
        what comes before it."""
        parts: list[Node] = []
        for index, element in reversed(list(enumerate(elements))):
            place = (*path, "elements", index)
            if element.get("type") != "const_string":
                parts.append(self._format(element, place, ends))
                ends = ()
                continue
            values = checked(element, _FORMATS["const_string"], place)
            parts.append(self._texts.one_of(ends))
            ends = (values["value"],)
        parts.append(self._texts.one_of(ends))
        return sequence(reversed(parts))

    def _calls(
        self, tags: list[Values], fields: Mapping[str, Field], path: Path
    ) -> list[_Call]:
        """The tags of a list, which may leave out their type."""
        calls = []
        for index, tag in enumerate(tags):
            place = (*path, index)
            if tag.get("type", "tag") != "tag":
                raise malformed("must be a tag", place)
            calls.append(self._call(checked(tag, fields, place), place))
        return calls

    def _call(self, values: Values, path: Path) -> _Call:
        """A tag, or a structure of the older form."""
        end = values["end"]
        ends = (end,) if isinstance(end, str) else tuple(end)
        if "schema" in values:
            schema = Schema(values["schema"], (*path, "schema"))
            return values["begin"], sequence([schema, self._texts.one_of(ends)])
        outer = self._tag_ends
        self._tag_ends = ends
        rest = self._content(values, path, ends)
        self._tag_ends = outer
        return values["begin"], rest

    def _written(self, begin: str, rest: Node) -> Node:
        """A tag with the text that begins it."""
        return sequence([self._texts.spelled(begin), rest])

    def _separated(self, values: Values, path: Path) -> Node:
        """Tags with a text between two of them."""
        calls = self._calls(values["tags"], _TAG, (*path, "tags"))
        tag = either([self._written(*call) for call in calls])
        if not values["stop_after_first"]:
            more = self._written(values["separator"], tag)
            tag = sequence([tag, Repeat(more, 0, loop=True)])
        return tag if values["at_least_one"] else optional(tag)

    def _free_text(
        self, calls: list[_Call], values: Values, path: Path, ends: Ends
    ) -> Node:
        """Free text, in which each trigger begins a tag, up to one of the ends; without
        any, as far as it goes."""
        after = self._texts.one_of(ends)
        first = either([self._written(*call) for call in calls])
        at_least_one = values.get("at_least_one")
        once = values.get("stop_after_first")
        if once and at_least_one:
            return sequence([first, after])
        triggers = values.get("triggers", [])
        place = (*path, "triggers")
        # Free text must not have ends of the tag around it either.
        excluded = {*values["excludes"], *filter(None, self._tag_ends)}
        if not excluded.isdisjoint(triggers):
            raise refusal("a trigger that is an end or an excluded text", place)
        stops = tuple(sorted(excluded.union(triggers)))
        tail = optional(Free(stops))
        if ends:
            goals = [(end, EMPTY) for end in ends]
            tail = self._texts.free(stops, excluded, goals, path)
        if not calls:
            return tail
        triggered = self._texts.free(stops, triggers, calls, place)
        if once:
            return either([sequence([triggered, after]), tail])
        more = sequence([Repeat(triggered, 0, loop=True), tail])
        return sequence([first, more]) if at_least_one else more


def _regex(pattern: str, path: Path) -> Node:
    """Text that a regular expression matches as a whole."""
    try:
        tree = whole(pattern)
    except UnsupportedSpecError as error:
        raise refusal(error.what, path, error.hint) from None
    found = Regex(pattern, _alphabet(tree))
    return optional(found) if nullable(tree) else found


def _alphabet(tree: ecma.Node) -> frozenset[int]:
    """Every byte that may be in a text of this language, and perhaps others."""
    if isinstance(tree, ecma.Not):
        return frozenset(range(256))
    if not isinstance(tree, ecma.Characters):
        return _NOT_ASCII.union(*map(_alphabet, ecma.children(tree)))
    ascii_codes = (range(low, min(high, 127) + 1) for low, high in tree.ranges)
    return _NOT_ASCII.union(*ascii_codes)
