"""Where the outputs of a spec begin, and what their JSON demands. Depends on sources, tags and distinct.

Of a structural tag each array or object is followed by itself: what may come in it depends on nothing around
it. Its matcher of bytes is of that part alone, so that control tokens and long texts around it don't matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from guided_plugin.grammar.llguidance.distinct.demands import Demands
from guided_plugin.grammar.llguidance.distinct.scanner import Outside, Part, State
from guided_plugin.grammar.llguidance.lark import DISTINCT, demands_of
from guided_plugin.grammar.llguidance.sources import source_text
from guided_plugin.grammar.llguidance.tags import json_parts, parts_to_lark
from guided_plugin.grammar.llguidance.tags.nodes import Schema
from guided_plugin.spec import OutputSpec

Bytewise = Callable[[str], Any]
"""A matcher, whose token i is byte i, of a grammar."""


def first_state(
    spec: OutputSpec, bytewise: Bytewise, *, unenforced: Iterable[str], controls: Mapping[int, str]
) -> State:
    """The beginning of the outputs of a JSON Schema or structural tag."""
    if spec.kind != "structural_tag":
        matcher = bytewise(source_text(spec, unenforced=unenforced, impossible_token=None))
        root = demands_of(spec.document(), strict=spec.strict, unenforced=unenforced)
        return State(Part(Demands([root]).root, matcher.deep_copy))
    parts = _Parts(spec, bytewise, tuple(unenforced))
    options: dict[str, Any] = {"strict": spec.strict, "flexible": spec.whitespace == "flexible"}
    start = json_parts(spec.document(), parts.part, **options, controls=controls, unenforced=unenforced)
    return State(None, outside=start)


class _Parts:
    """The JSON of one tag: tags often repeat a schema."""

    def __init__(self, spec: OutputSpec, bytewise: Bytewise, unenforced: tuple[str, ...]) -> None:
        self._strict = spec.strict
        self._flexible = spec.whitespace == "flexible"
        self._unenforced = unenforced
        self._bytewise = bytewise
        self._known: dict[tuple[tuple[str, bool], ...], Part] = {}

    def part(self, schemas: list[Schema], after: Outside) -> Part:
        """JSON of one of these schemas, and what is behind it."""
        named = {(json.dumps(schema.schema), schema.any_order): schema for schema in schemas}
        key = tuple(sorted(named))
        if key not in self._known:
            self._known[key] = self._made([named[each] for each in key])
        found = self._known[key]
        return Part(found.place, found.bytewise, after)

    def _made(self, schemas: list[Schema]) -> Part:
        text = parts_to_lark(
            schemas, strict=self._strict, flexible=self._flexible, unenforced=self._unenforced
        )
        if not text.endswith(DISTINCT):
            return Part(None, _nothing)
        matcher = self._bytewise(text)
        roots = [
            demands_of(each.schema, strict=self._strict, unenforced=self._unenforced) for each in schemas
        ]
        return Part(Demands(roots).root, matcher.deep_copy)


def _nothing() -> Any:
    raise RuntimeError("JSON without demands is not looked ahead in")
