"""What is refused before it is compiled: specs too large, too deep or too often repeated.

Touches config, errors and the regex parser. Iterative, and quick beside any compile. These bounds are for
what no compiler makes anything of; time and memory have limits of their own (guard.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError, UnsupportedSpecError
from guided_plugin.lowering import ecma
from guided_plugin.schema import pointer
from guided_plugin.spec import OutputSpec

__all__ = ["check_limits", "is_small"]

_Path = tuple[str | int, ...]

_BOUNDS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_LENGTHS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")

# What may be compiled in the process that asked: below this, backends take milliseconds.
_SMALL_SCHEMA = 8_192
_SMALL_ENTANGLED = 2_048
_SMALL_GRAMMAR = 1_024
_SMALL_TEXT = 256
_SMALL_UNROLLED = 2_000
_ENTANGLED = re.compile(r'"(?:allOf|anyOf|oneOf|not|if|dependencies|dependentSchemas|\$ref)"')


def check_limits(spec: OutputSpec, config: GuidedConfig) -> None:
    """Refuse a spec that is over a bound, with the bound's name and the place."""
    size = len(spec.text.encode(errors="surrogatepass"))
    if size > config.max_spec_bytes:
        raise _over("a spec", size, "bytes", "max_spec_bytes", config.max_spec_bytes, spec.kind)
    if spec.kind == "json_schema":
        for path, key, value in _values(spec.document(), config.max_depth):
            _check_value(path, key, value, config)
    elif spec.kind == "regex":
        _check_unrolled(spec.text, config, "regex")
    elif spec.kind == "grammar":
        repeated = max((_bound(found) for found in _BOUNDS.finditer(spec.text)), default=0)
        if repeated > config.max_repetition:
            raise _over("a repetition", repeated, "times", "max_repetition", config.max_repetition, "grammar")
    elif spec.kind == "choice" and len(spec.document()) > config.max_enum:
        raise _over("a choice", len(spec.document()), "texts", "max_enum", config.max_enum, "choice")


def is_small(spec: OutputSpec, backend: str) -> bool:
    """Whether a backend certainly compiles a spec in a moment and in little memory."""
    if spec.kind == "json_object":
        return True
    if spec.kind == "json_schema":
        if backend == "xgrammar" or len(spec.text) > _SMALL_SCHEMA:
            return False
        if len(spec.text) > _SMALL_ENTANGLED and _ENTANGLED.search(spec.text):
            return False
        bounds = [_bound(found) for found in _BOUNDS.finditer(spec.text)]
        return max(bounds, default=0) <= _SMALL_UNROLLED
    if spec.kind == "choice":
        return len(spec.text) <= _SMALL_SCHEMA
    if spec.kind == "regex":
        unrolled = _unrolled(spec.text)
        return len(spec.text) <= _SMALL_TEXT and unrolled is not None and unrolled <= _SMALL_TEXT
    if spec.kind == "grammar":
        bounds = [_bound(found) for found in _BOUNDS.finditer(spec.text)]
        return len(spec.text) <= _SMALL_GRAMMAR and max(bounds, default=0) <= _SMALL_TEXT
    return False


def _values(document: Any, max_depth: int) -> Iterator[tuple[_Path, str, Any]]:
    """Every member of every object in a document, with its name and path."""
    pending: list[tuple[_Path, Any]] = [((), document)]
    while pending:
        path, node = pending.pop()
        if len(path) > max_depth:
            raise CompileLimitError(
                f"is nested more than {max_depth} deep",
                where=pointer(path[:6]) + "/...",
                hint="flatten it, or raise max_depth",
            )
        if isinstance(node, Mapping):
            for key, value in node.items():
                yield path, key, value
                if isinstance(value, Mapping | list):
                    pending.append(((*path, key), value))
        elif isinstance(node, list):
            inner = ((index, value) for index, value in enumerate(node))
            pending.extend(((*path, i), value) for i, value in inner if isinstance(value, Mapping | list))


def _check_value(path: _Path, key: str, value: Any, config: GuidedConfig) -> None:
    where = pointer((*path, key))
    if key == "enum" and isinstance(value, list) and len(value) > config.max_enum:
        raise _over("an enum", len(value), "values", "max_enum", config.max_enum, where)
    if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, Mapping):
        if len(value) > config.max_properties:
            raise _over(f"`{key}`", len(value), "members", "max_properties", config.max_properties, where)
        if key == "patternProperties":
            for source in value:
                _check_unrolled(source, config, where)
    elif key == "pattern" and isinstance(value, str):
        _check_unrolled(value, config, where)
    elif key in _LENGTHS and isinstance(value, int) and value > config.max_repetition:
        raise _over(f"`{key}`", value, "", "max_repetition", config.max_repetition, where)


def _check_unrolled(source: str, config: GuidedConfig, where: str) -> None:
    unrolled = _unrolled(source)
    if unrolled is None:
        # What this parser doesn't take a backend may take.
        unrolled = max((_bound(found) for found in _BOUNDS.finditer(source)), default=0)
    if unrolled > config.max_repetition:
        what = "a pattern, its repetitions written out,"
        raise _over(what, unrolled, "characters", "max_repetition", config.max_repetition, where)


def _unrolled(source: str) -> int | None:
    """How many characters a pattern has with its repetitions written out."""
    try:
        return _size(ecma.parse(source))
    except UnsupportedSpecError:
        return None


def _size(node: ecma.Node) -> int:
    match node:
        case ecma.Sequence(parts) | ecma.Alternation(parts):
            return sum(map(_size, parts))
        case ecma.Repeat(part, low, high):
            return _size(part) * max(low, high or 1, 1)
        case ecma.Look(part, _):
            return _size(part)
        case _:
            return 1


def _bound(found: re.Match[str]) -> int:
    return max(int(found[1]), int(found[2] or 0))


def _over(what: str, size: int, unit: str, option: str, limit: int, where: str) -> CompileLimitError:
    return CompileLimitError(
        f"{what} of {size} {unit}".rstrip() + f" is over the limit of {limit}",
        where=where,
        hint=f"make it smaller, or raise {option}",
    )
