"""Limits that are checked before a compile: specs too large, too deep or too often
repeated; and what is told of them.

Depends on config, errors and spec. Iterative, and quick next to any compile. These
bounds are for specs that no compiler can handle; time and memory have limits of their
own (pool.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from guided_plugin.config import BOUNDS, GuidedConfig, SpecLimits
from guided_plugin.errors import CompileLimitError
from guided_plugin.keywords import KEYWORDS
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.references import Path, pointer
from guided_plugin.spec.schema import misspelt, schemas_in, walk
from guided_plugin.spec.telling import told

_LENGTHS = frozenset(
    name for name, keyword in KEYWORDS.items() if keyword.value == "count"
)

_FORM_BYTES = 4_096
_FORM_NODES = 64
"""Bytes and JSON values that a form may have around its spec."""


_CONTAINERS = (dict, list, tuple)

_MOST_UNKNOWN = 200
"""Unknown keywords of a spec that are compared with known ones. Each takes 0.06 ms;
the schema of the MaskBench sample with the most has 13."""

# What may be compiled in the process that asked
# (docs/architecture.md#how-specs-compile).
_SMALL_TEXT = 4_096
_SMALL_SOURCE = 1_024
_SMALL_CLASSES = 12
_SMALL_PATTERN = 256
_SMALL_LENGTH = 2_000
_SMALL_BRANCHES = 32
_SLOW = re.compile(r"\(\?[=!]|\\[pP]")
"""Lookahead is a second pattern that must hold, or fail, together with the rest. The
first use of a category of Unicode in a process takes 0.2 s."""
# Keywords whose cost doesn't follow from the length of a schema: products of
# alternatives, remainders.
_ENTANGLING = frozenset(
    {
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "uniqueItems",
        "multipleOf",
        "minProperties",
        "maxProperties",
        "dependencies",
        "dependentSchemas",
        "dependentRequired",
        "patternProperties",
        "propertyNames",
    }
)


def check_size(form: Any, config: SpecLimits) -> None:
    """Refuse what a client wrote if it is certainly over `max_spec_bytes` or
    `max_nodes`, before it is read.

    Copies nothing, and looks at no more of it than that. A text counts as it came, with
    its whitespace.
    """
    most = config.max_spec_bytes + _FORM_BYTES
    most_nodes = config.max_nodes + _FORM_NODES
    size = nodes = 1
    waiting = [form]
    while waiting and size <= most and nodes <= most_nodes:
        one = waiting.pop()
        if isinstance(one, str):
            size += len(one)
            if size <= most and one[:1] in "{ \t\r\n":
                nodes += _nodes_of_text(one, most_nodes)
        elif isinstance(one, _CONTAINERS):
            size += 2 * len(one)  # a byte of each member, and what is between them
            nodes += len(one)
            if size > most or nodes > most_nodes:
                break
            if isinstance(one, dict):
                for name in one:
                    size += len(name) + 3 if isinstance(name, str) else 0
                waiting.extend(one.values())
            else:
                waiting.extend(one)
        elif isinstance(one, OutputSpec):
            size += len(one.text)
    if size > most:
        what = f"a spec of more than {config.max_spec_bytes} bytes is over the limit"
        raise CompileLimitError(what, hint="make it smaller, or raise max_spec_bytes")
    if nodes > most_nodes:
        what = f"a spec of more than {config.max_nodes} JSON values is over the limit"
        raise CompileLimitError(what, hint="make it smaller, or raise max_nodes")


def _nodes_of_text(text: str, enough: int) -> int:
    """Return the number of values in a JSON text; 0 if they are certainly no more than
    `enough`."""
    if sum(map(text.count, ",{[")) <= enough:
        return 0
    # of strings, whose quotes stay
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    plain = "".join('"'.join(outside).split())
    # Each comma comes before one, and each container that is not empty begins with one.
    return sum(map(plain.count, ",{[")) - plain.count("{}") - plain.count("[]")


def check_limits(spec: OutputSpec, config: GuidedConfig) -> list[str]:
    """Refuse a spec that is over a bound. The error names the bound and the place.
    Returns a warning for each keyword in its schemas that looks like one and is none,
    at one of its places."""
    try:
        unknown: dict[str, str] = {}
        size = len(spec.text.encode(errors="surrogatepass"))
        _bound("a spec", size, " bytes", "max_spec_bytes", config, spec.kind)
        what = "categories of Unicode, written out,"
        size = 10_000 * spec.text.lower().count(r"\p{")  # of the longest
        _bound(what, size, " characters", "max_repetition", config, spec.kind)
        for name in BOUNDS:
            _bound(name, getattr(spec, name) or 0, "", "max_repetition", config, name)
        if spec.kind in ("regex", "grammar"):
            _check_pattern(spec.text, config, spec.kind)
        else:
            document = spec.document()
            nodes, is_deeper = _measured(document, config.max_spec_depth)
            _bound("a spec", nodes, " JSON values", "max_nodes", config, spec.kind)
            if is_deeper:
                raise _too_deep("is", config, spec.kind)
            for place, schema in schemas_in(spec.kind, document):
                for path, node in walk(schema):
                    if isinstance(node, dict):
                        _check_schema(node, config, (place, *path), unknown)
        return list(filter(None, unknown.values()))
    except CompileLimitError as error:
        raise told(
            error, spec.kind, spec.document() if "#/" in error.where else None
        ) from None


def is_small(spec: OutputSpec, backend: str) -> bool:
    """True if a backend certainly compiles a spec in milliseconds and in little memory.

    For xgrammar that holds for few grammars, since each class in one may take it 40
    ms; for backends of third parties nothing is known.
    """
    if backend not in ("llguidance", "xgrammar") or len(spec.text) > _SMALL_TEXT:
        return False
    if spec.close_before_length and spec.kind == "grammar":
        return False  # its shortest output is searched for
    if max([getattr(spec, name) or 0 for name in BOUNDS]) > _SMALL_LENGTH:
        return False
    if spec.kind in ("regex", "grammar"):
        if len(spec.text) > _SMALL_SOURCE:
            return False
        if spec.kind == "regex" and not _is_small_pattern(spec.text):
            return False
        classes, _ = unrolled(spec.text, grammar=spec.kind == "grammar", letter=0)
        return classes <= (
            _SMALL_PATTERN if backend == "llguidance" else _SMALL_CLASSES
        )
    schemas = schemas_in(spec.kind, spec.document())
    return all(_is_small_schema(schema) for _, schema in schemas)


def unrolled(
    pattern: str, *, grammar: bool = False, letter: int = 1
) -> tuple[int, int]:
    """Return the number of characters of a pattern with its repetitions written out,
    and the depth of its groups.

    A grammar is read as one pattern with texts in quotes, which is near enough. A class
    counts 1, a plain character `letter`.
    """
    sizes = [0]  # of each open group
    atom = 0  # of what a quantifier would repeat
    deepest = 1
    for found in (_GRAMMAR_PIECE if grammar else _PIECE).finditer(pattern):
        piece = found[0]
        if found["low"] is not None:
            atom = min(
                atom * max(1, _count(found["low"]), _count(found["high"])), _MANY
            )
        elif piece == ")":
            atom += sizes.pop() if len(sizes) > 1 else 1
        else:
            sizes[-1] += atom
            atom = 1
            if piece == "(":
                sizes.append(0)
                deepest = max(deepest, len(sizes))
                atom = 0
            elif found["run"] is not None:
                sizes[-1] += letter * (len(piece) - 1)
                atom = letter
    return sum(sizes) + atom, deepest - 1


_MANY = 10**18

_PIECES = r"""
    \{(?P<low>\d+)(?:,(?P<high>\d*))?\}
    | (?P<run>[^\\\[(){}".]+)
    | \\.
    | \[\^?(?:[^\]\\]++|\\.)*+\]?
    | .
"""
# In regular expressions of Lark, a bracket right after the one that opens a class
# belongs to it.
_GRAMMAR_PIECES = _PIECES.strip().replace(r"\[\^?", r"\[\^?\]?")
_PIECE = re.compile(_PIECES, re.DOTALL | re.ASCII | re.VERBOSE)
_GRAMMAR_PIECE = re.compile(
    r'"(?:[^"\\\n]++|\\.)*+"|' + _GRAMMAR_PIECES, re.DOTALL | re.ASCII | re.VERBOSE
)


def _count(digits: str | None) -> int:
    # Python refuses to read a number of thousands of digits.
    return (int(digits) if len(digits) < 19 else _MANY) if digits else 0


def _check_pattern(source: str, config: GuidedConfig, *place: str | int) -> None:
    size, depth = unrolled(source, grammar=place == ("grammar",))
    if depth > config.max_spec_depth:
        raise _too_deep("has brackets", config, *place)
    # A pattern that is as long as its text repeats nothing, and its length was checked.
    if size > len(source):
        what = "a pattern, with its repetitions written out,"
        _bound(what, size, " characters", "max_repetition", config, *place)


def _measured(document: Any, depth: int) -> tuple[int, bool]:
    """Return the number of values in a document, and whether they are nested deeper
    than `depth`; those below that are not counted.

    Level by level, and without paths: many deep paths would take more memory than the
    document.
    """
    nodes = 1
    level = [document] if isinstance(document, _CONTAINERS) else []
    for _ in range(depth + 1):
        nodes += sum(map(len, level))
        above = level
        level = []
        for node in above:
            for value in node.values() if isinstance(node, dict) else node:
                if isinstance(value, _CONTAINERS):
                    level.append(value)
        if not level:
            return nodes, False
    return nodes, True


def _check_schema(
    node: Mapping[str, Any],
    config: GuidedConfig,
    place: Path,
    unknown: dict[str, str],
) -> None:
    """`unknown`: what is told of unknown keywords."""
    for key, value in node.items():
        if key not in KEYWORDS and key not in unknown and len(unknown) < _MOST_UNKNOWN:
            unknown[key] = misspelt(key, _where(*place, key))
        if key in _LENGTHS:
            _bound(f"`{key}`", value, "", "max_repetition", config, *place, key)
        if key == "pattern":
            _check_pattern(value, config, *place, key)
        if key == "patternProperties":
            for source in value:
                _check_pattern(source, config, *place, key, source)


def _is_small_schema(document: Any) -> bool:
    branches = 0
    patterns = ""
    for _, node in walk(document):
        if not isinstance(node, dict):
            continue
        if not _ENTANGLING.isdisjoint(node):
            return False
        branches += len(node.get("anyOf", ())) + ("$ref" in node)
        longest = max(map(node.__getitem__, _LENGTHS.intersection(node)), default=0)
        if branches > _SMALL_BRANCHES or longest > _SMALL_LENGTH:
            return False
        if "pattern" in node:
            # A pattern that must hold together with something else is the product of
            # both.
            if not {"minLength", "maxLength", "format"}.isdisjoint(node):
                return False
            patterns += node["pattern"]
    return _is_small_pattern(patterns)


def _is_small_pattern(source: str) -> bool:
    return (
        not _SLOW.search(source)
        and len(source) <= _SMALL_PATTERN
        and unrolled(source)[0] <= _SMALL_PATTERN
    )


def _too_deep(what: str, config: GuidedConfig, *place: str | int) -> CompileLimitError:
    return CompileLimitError(
        f"{what} nested more than {config.max_spec_depth} deep",
        where=_where(*place),
        hint="flatten it, or raise max_spec_depth",
    )


def _bound(
    what: str,
    size: float,
    unit: str,
    option: str,
    config: GuidedConfig,
    *place: str | int,
) -> None:
    """Refuse what is larger than an option."""
    limit = getattr(config, option)
    if size > limit:
        # Hundreds of digits would tell no more than that the number is large.
        shown = f"{size}" if size < _MANY else "more than 10^18"
        raise CompileLimitError(
            f"{what} of {shown}{unit} is over the limit of {limit}",
            where=_where(*place),
            hint=f"make it smaller, or raise {option}",
        )


def _where(start: str | int, *path: str | int) -> str:
    # Written for errors alone: a path may be as long as the spec.
    return f"{start}{pointer(path)[1:]}"
