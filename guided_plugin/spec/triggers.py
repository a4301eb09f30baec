"""`Trigger`: after what the constrained part of an output begins. Depends on errors.

A spec may have several: reasoning may end with `</think>`, or with the `<tool_call>`
that is output already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from guided_plugin.errors import SpecError, place_in, shown

MOST_TRIGGERS = 128
"""The most triggers of one spec: a reasoning part has a few ends, and OpenAI's API
takes 128 tools, with a trigger each."""

MOST_TRIGGER_BYTES = 16_384
"""Bytes of texts and token ids of all of them: 128 tools with names of 64 characters in
a few tags."""

_WHERE = "start_after"
_HINT = 'a text, token ids, or a list of such; {"text": "<tool_call>", "kept": true} if it is output already'


class Trigger(NamedTuple):
    """A token sequence, as ids or text."""

    tokens: tuple[int, ...] | str
    kept: bool = False
    """True if the constrained part begins with it; else after it."""


def triggers(value: Any) -> tuple[Trigger, ...]:
    """All forms of `start_after`: a text, token ids, a `Trigger` or mapping, a list of
    alternatives."""
    if _is_one(value):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise SpecError(
            f"must be token ids or text, not {shown(value)}", where=_WHERE, hint=_HINT
        )
    given = list(islice(value, MOST_TRIGGERS + 1))
    found = tuple(dict.fromkeys(map(_trigger, given)))
    if not found:
        raise SpecError(
            "must not be empty", where=_WHERE, hint="None constrains from the start"
        )
    texts = (
        one.tokens.encode() if isinstance(one.tokens, str) else one.tokens
        for one in found
    )
    if len(given) > MOST_TRIGGERS or sum(map(len, texts)) > MOST_TRIGGER_BYTES:
        what = f"has more than {MOST_TRIGGERS} alternatives, or {MOST_TRIGGER_BYTES} bytes and token ids"
        raise SpecError(
            what,
            where=_WHERE,
            hint="a few tokens are enough to tell where a part begins",
        )
    return found


def nearest(found: Iterable[Trigger]) -> Trigger | None:
    """The one to write where none comes by itself: the shortest that is no part of the
    output, where there is one."""
    return min(found, key=lambda one: (one.kept, len(one.tokens)), default=None)


def written(found: tuple[Trigger, ...]) -> Any:
    """The shortest form that `triggers` reads back; JSON-serialisable."""
    forms = [_form(each) for each in found]
    return forms[0] if len(forms) == 1 else forms


def _is_one(value: Any) -> bool:
    """True if it is one alternative: ids, a text, a mapping or a `Trigger`."""
    if isinstance(value, str | int | Mapping | Trigger):
        return True
    if not isinstance(value, list | tuple) or not value:
        return False
    return isinstance(value[0], int)


def _trigger(value: Any) -> Trigger:
    kept: Any = False
    if isinstance(value, Trigger):
        value, kept = value
    elif isinstance(value, Mapping):
        unknown = value.keys() - {"text", "tokens", "kept"}
        if unknown or ("text" in value) == ("tokens" in value):
            raise SpecError(f"can't be {shown(dict(value))}", where=_WHERE, hint=_HINT)
        value, kept = value.get("text", value.get("tokens")), value.get("kept", False)
    if not isinstance(kept, bool):
        raise SpecError(
            f"kept must be true or false, not {shown(kept)}", where=_WHERE, hint=_HINT
        )
    if isinstance(value, str):
        if not value:
            raise SpecError(
                "must not be empty", where=_WHERE, hint="None constrains from the start"
            )
        check_text(value, _WHERE)
        return Trigger(str.__str__(value), kept)
    return Trigger(token_ids(_WHERE, value), kept)


def _form(trigger: Trigger) -> Any:
    what = trigger.tokens if isinstance(trigger.tokens, str) else list(trigger.tokens)
    if not trigger.kept:
        return what
    return {"text" if isinstance(what, str) else "tokens": what, "kept": True}


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids as a tuple. Raises SpecError."""
    # Bytes are text that was not decoded, though they iterate as whole numbers.
    listed = isinstance(value, Iterable) and not isinstance(value, bytes)
    ids = (value,) if isinstance(value, int) else tuple(value) if listed else ()
    if not ids or not all(
        isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31
        for token in ids
    ):
        raise SpecError(
            f"must be token ids, not {shown(value)}",
            where=name,
            hint="a list of whole numbers",
        )
    return tuple(map(int, ids))


def check_text(text: str, where: str) -> None:
    """Refuse a text that has no UTF-8. Raises SpecError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"has a lone surrogate, which no text can hold: {shown(text[error.start])}",
            where=place_in(where, text, error.start),
            hint="leave it out, or write the character as a pair",
        ) from None
