"""A structural tag's document as nodes. Depends on fields, xml and spec.

Reads what one grammar can express exactly; all else is refused, with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.tags.fields import (
    Fields,
    Reading,
    flag,
    known,
    listed,
    malformed,
    refusal,
    text_of,
    texts,
)
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Control,
    Dispatch,
    Node,
    Path,
    Regex,
    Repeat,
    Rule,
    Schema,
    Text,
    closed,
    either,
    optional,
    sequence,
    written_out,
)
from guided_plugin.grammar.llguidance.tags.xml import xml_schema
from guided_plugin.spec import OutputSpec, ecma
from guided_plugin.spec.languages import nullable, whole

# So many times at most: a parser keeps count of each.
_MAX_REPEAT = 1_000


def read_tag(spec: OutputSpec, controls: Mapping[int, str]) -> Node:
    """The whole tag. `controls`: names of the control tokens that it may name, by
    id."""
    document = spec.document()
    reading = Reading(controls, _FORMATS, spec)
    if "format" in document:
        return written_out(reading.format(document["format"], ("format",)))
    return written_out(_older(reading, document))


def _older(reading: Reading, document: Fields) -> Node:
    """The older form: `structures` next to `triggers`."""
    tags = []
    for index, tag in enumerate(listed(document, "structures", (), dict)):
        path: Path = ("structures", index)
        known(tag, ("begin", "schema", "end"), path)
        content = Schema(tag.get("schema", True), (*path, "schema"), any_order=False)
        ends = reading.endings(tag, path)
        tags.append((text_of(tag, "begin", path), closed(content, ends, reading.names)))
    return Dispatch(
        tuple(_by_trigger(reading, tags, texts(document, "triggers", ()), ())), ()
    )


def _json_schema(reading: Reading, node: Fields, path: Path) -> Node:
    """JSON that satisfies a schema."""
    if node.get("excludes"):
        raise refusal("`excludes` of JSON", (*path, "excludes"))
    most = node.get("max_whitespace_cnt")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise malformed("must be a number above zero", (*path, "max_whitespace_cnt"))
    if most is not None and reading.whitespace == "flexible":
        raise refusal(
            "`max_whitespace_cnt`",
            (*path, "max_whitespace_cnt"),
            "use compact or spaced whitespace",
        )
    if "json_schema" not in node:
        raise malformed("must have a `json_schema`", path)
    any_order = flag(node, "any_order", path)
    found = Schema(node["json_schema"], (*path, "json_schema"), any_order)
    return (
        found
        if node.get("style", "json") == "json"
        else xml_schema(reading, node, path)
    )


def _regex(reading: Reading, node: Fields, path: Path) -> Node:
    """Text that a regular expression matches as a whole."""
    path = (*path, "pattern")
    pattern = node.get("pattern")
    if not isinstance(pattern, str) or not pattern:
        raise malformed("must be a string that is not empty", path)
    try:
        tree = whole(pattern)
    except UnsupportedSpecError as error:
        raise refusal(error.what, path, error.hint) from None
    found = Regex(pattern, frozenset(_alphabet(tree)))
    return optional(found) if nullable(tree) else found


def _any(reading: Reading, node: Fields, path: Path) -> Node:
    """Any text, up to the end of the tag around it. Control tokens are none, whichever
    are excluded."""
    for key in ("max_tokens", "max_chars"):
        if node.get(key) is not None:
            raise refusal(f"`{key}`", (*path, key))
    reading.tokens(node, "exclude_tokens", path)
    ends = reading.ends if node["type"] == "any_text" else ()
    return Dispatch((), (*texts(node, "excludes", path), *ends))


def _alphabet(tree: ecma.Node) -> Iterator[int]:
    """Every byte that may be in a text of this language."""
    if isinstance(tree, ecma.Not):
        yield from range(256)
    elif isinstance(tree, ecma.Characters):
        yield from _bytes(tree)
    else:
        for part in ecma.children(tree):
            yield from _alphabet(part)


def _bytes(characters: ecma.Characters) -> Iterator[int]:
    """Every byte that may be in one of these characters; some more where dialects
    differ."""
    yield from range(128, 256)
    for code in range(128):
        inside = any(low <= code <= high for low, high in characters.ranges)
        if characters.properties or inside != characters.negated:
            yield code
    if characters.negated:
        yield from (10, 13)


def _sequence(reading: Reading, node: Fields, path: Path) -> Node:
    result: Node = EMPTY
    for index, part in enumerate(listed(node, "elements", path, dict)):
        found = reading.format(part, (*path, "elements", index))
        literal = part.get("type") == "const_string" and part["value"]
        if literal or isinstance(found, Control):
            result = closed(
                result, [Text(literal) if literal else found], reading.names
            )
        else:
            result = sequence([result, found])
    return result


def _or(reading: Reading, node: Fields, path: Path) -> Node:
    elements = listed(node, "elements", path, dict)
    if not elements:
        raise malformed("must not be empty", (*path, "elements"))
    return either(
        [
            reading.format(part, (*path, "elements", i))
            for i, part in enumerate(elements)
        ]
    )


def _token_begin(reading: Reading, node: Fields, path: Path) -> Control:
    token = reading.part(node, "begin", path)
    if not isinstance(token, Control):
        raise malformed("must be a token", (*path, "begin"))
    return token


def _content(reading: Reading, node: Fields, path: Path) -> Node:
    """The content of a tag with one of its ends."""
    known(node, ("type", "begin", "content", "end"), path)
    if node.get("type", "tag") != "tag":
        raise malformed("must be a tag", path)
    ends = reading.endings(node, path)
    outer = reading.ends
    reading.ends = [end.text for end in ends if isinstance(end, Text)]
    content = reading.part(node, "content", path)
    reading.ends = outer
    return closed(content, ends, reading.names)


def _tag(reading: Reading, node: Fields, path: Path) -> Node:
    if isinstance(node.get("begin"), str):
        head = reading.names.spelled(node["begin"])
    else:
        head = _token_begin(reading, node, path)
    return sequence([head, _content(reading, node, path)])


def _triggered(reading: Reading, node: Fields, path: Path) -> Node:
    tags = []
    for index, tag in enumerate(listed(node, "tags", path, dict)):
        tag_path = (*path, "tags", index)
        tags.append((text_of(tag, "begin", tag_path), _content(reading, tag, tag_path)))
    rules = _by_trigger(reading, tags, texts(node, "triggers", path), path)
    wholes = [sequence([reading.names.spelled(begin), rest]) for begin, rest in tags]
    excludes = (*texts(node, "excludes", path), *reading.ends)
    return _from_rules(rules, wholes, excludes, node, path)


def _by_trigger(
    reading: Reading, tags: list[tuple[str, Node]], triggers: list[str], path: Path
) -> list[Rule]:
    """A rule for each tag; exactly one trigger begins it."""
    rules: list[Rule] = []
    for begin, rest in tags:
        fitting = [trigger for trigger in triggers if begin.startswith(trigger)]
        if len(fitting) != 1:
            raise malformed(
                f"exactly one must begin {shown(begin)}", (*path, "triggers")
            )
        rules += [
            (start, sequence([part, rest]))
            for start, part in reading.names.ways(begin, fitting[0])
        ]
    used = {trigger for trigger, _ in rules}
    if not rules or any(trigger not in used for trigger in triggers):
        raise refusal("a trigger without a tag", (*path, "triggers"))
    return rules


def _from_rules(
    rules: list[Rule],
    wholes: list[Node],
    excludes: tuple[str, ...],
    node: Fields,
    path: Path,
) -> Node:
    """Free text with tags. `wholes`: the tags, begins included."""
    once = flag(node, "stop_after_first", path)
    first = flag(node, "at_least_one", path)
    if once and first:
        return either(wholes)
    dispatch = Dispatch(tuple(rules), excludes, loop=not once)
    return sequence([either(wholes), dispatch]) if first else dispatch


def _token_triggered(reading: Reading, node: Fields, path: Path) -> Node:
    triggers = reading.tokens(node, "trigger_tokens", path)
    reading.tokens(node, "exclude_tokens", path)  # Free text has no control tokens.
    rules: list[Rule] = []
    wholes: list[Node] = []
    for index, tag in enumerate(listed(node, "tags", path, dict)):
        tag_path = (*path, "tags", index)
        begin = _token_begin(reading, tag, tag_path)
        if begin.token not in triggers:
            raise malformed("must be one of the trigger tokens", (*tag_path, "begin"))
        rules.append((("", begin.token), _content(reading, tag, tag_path)))
        wholes.append(sequence([begin, rules[-1][1]]))
    if {start[1] for start, _ in rules} != triggers or not triggers:
        raise refusal("a trigger without a tag", (*path, "trigger_tokens"))
    return _from_rules(rules, wholes, (), node, path)


def _dispatch(reading: Reading, node: Fields, path: Path) -> Node:
    """Free text in which a text, or a token, must be followed by a format."""
    reading.tokens(node, "exclude_tokens", path)  # Free text has no control tokens.
    rules: list[Rule] = []
    for index, rule in enumerate(listed(node, "rules", path, list)):
        rule_path = (*path, "rules", index)
        if len(rule) != 2:
            raise malformed("must be a trigger and a format", rule_path)
        content = reading.format(rule[1], (*rule_path, 1))
        if node["type"] == "token_dispatch":
            rules.append((("", reading.token(rule[0], (*rule_path, 0)).token), content))
        elif isinstance(rule[0], str) and rule[0]:
            ways = reading.names.ways(rule[0], rule[0])
            rules += [(start, sequence([part, content])) for start, part in ways]
        else:
            raise malformed("must be a text", (*rule_path, 0))
    excludes = tuple(texts(node, "excludes", path))
    return Dispatch(tuple(rules), excludes, loop=flag(node, "loop", path, default=True))


def _separated(reading: Reading, node: Fields, path: Path) -> Node:
    tags = listed(node, "tags", path, dict)
    if not tags:
        raise malformed("must not be empty", (*path, "tags"))
    separator = text_of(node, "separator", path)
    tag = either(
        [_tag(reading, each, (*path, "tags", index)) for index, each in enumerate(tags)]
    )
    if not flag(node, "stop_after_first", path):
        more = sequence([reading.names.spelled(separator), tag])
        tag = sequence([tag, Repeat(more, 0, None)])
    return tag if flag(node, "at_least_one", path) else optional(tag)


def _times(low: int, high: int | None) -> Callable[[Reading, Fields, Path], Node]:
    return lambda reading, node, path: Repeat(
        reading.part(node, "content", path), low, high
    )


def _repeat(reading: Reading, node: Fields, path: Path) -> Node:
    low = node.get("min")
    high = node.get("max")
    if (
        not isinstance(low, int)
        or not isinstance(high, int)
        or low < 0
        or high < -1
        or -1 < high < low
    ):
        raise malformed("must have `min` and `max`, and `max` at least `min`", path)
    if max(low, high) > _MAX_REPEAT:
        raise refusal(f"more than {_MAX_REPEAT} repetitions", path)
    content = reading.part(node, "content", path)
    return Repeat(content, low, None if high == -1 else high) if high else EMPTY


_TAGS = ("tags", "at_least_one", "stop_after_first")
_FORMATS: Mapping[str, Any] = {
    "const_string": (
        ("value",),
        lambda r, node, path: r.names.spelled(text_of(node, "value", path)),
    ),
    "json_schema": (
        ("json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"),
        _json_schema,
    ),
    "regex": (("pattern",), _regex),
    "any_text": (("excludes", "max_tokens", "max_chars"), _any),
    "any_tokens": (("exclude_tokens", "max_tokens"), _any),
    "token": (
        ("token",),
        lambda r, node, path: r.token(node.get("token"), (*path, "token")),
    ),
    "sequence": (("elements",), _sequence),
    "or": (("elements",), _or),
    "tag": (("begin", "content", "end"), _tag),
    "triggered_tags": (("triggers", "excludes", *_TAGS), _triggered),
    "token_triggered_tags": (
        ("trigger_tokens", "exclude_tokens", *_TAGS),
        _token_triggered,
    ),
    "tags_with_separator": (("separator", *_TAGS), _separated),
    "optional": (("content",), _times(0, 1)),
    "plus": (("content",), _times(1, None)),
    "star": (("content",), _times(0, None)),
    "repeat": (("content", "min", "max"), _repeat),
    "dispatch": (("rules", "loop", "excludes"), _dispatch),
    "token_dispatch": (("rules", "loop", "exclude_tokens"), _dispatch),
}
