"""`OutputSpec`: what a request's output must look like. Depends on `config`, `forms`,
`triggers`, `schema`.

A spec is a value: frozen, hashable, picklable, equal when equal. It is checked when it
is made, so every spec is well formed; whether a backend can enforce it is for the
grammar layer to say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Literal, get_args

from guided_plugin.config import BOUNDS, GuidedConfig, Whitespace
from guided_plugin.errors import RequestError, SpecError, did_you_mean, printable, shown
from guided_plugin.spec.forms import (
    KINDS,
    OPTIONS,
    SETTLED,
    WHOLE,
    Kind,
    from_text,
    read,
)
from guided_plugin.spec.memo import remembered, texts_bytes
from guided_plugin.spec.python.form import form_of, is_python
from guided_plugin.spec.schema import check_schema, schemas_in
from guided_plugin.spec.telling import told
from guided_plugin.spec.triggers import (
    Trigger,
    check_text,
    token_ids,
    triggers,
    written,
)

Syntax = Literal["ebnf", "lark"]

_KNOWN: dict[str, tuple[Any, ...]] = {
    "kind": KINDS,
    "syntax": get_args(Syntax),
    "whitespace": (None, *get_args(Whitespace)),
}
"""Fields that take one of a few values."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The constraint of an output. Make one with a constructor below or with
    `parse`."""

    kind: Kind
    text: str
    """The constraint: a schema, choices or tag as JSON text in the order given, else
    the source itself."""
    syntax: Syntax = "ebnf"
    """The language of a `grammar`."""
    whitespace: Whitespace | None = None
    """In JSON: `flexible`, as models write it, indented or not; `compact`, none between
    its parts; `spaced`, one space after `:` and `,`, as `json.dumps` writes. None: as
    configured."""
    strict: bool | None = None
    """Objects that describe properties are closed unless the schema opens them. False:
    open, as the JSON Schema standard has it. None: as configured."""
    backend: str = "auto"
    stop_token_ids: tuple[int, ...] | None = None
    """Tokens that may end the output; None: the vocabulary's own."""
    start_after: tuple[Trigger, ...] | None = None
    """Constrain only what follows one of these, as after a reasoning part. Given as
    token ids, as a text, or as a list of alternatives; one that is `kept` is part of
    what is constrained."""
    close_before_length: bool | None = None
    """The output ends valid, at the latest at its token limit: near it masks lead to an
    end. None: as configured."""
    room: int | None = None
    """For that: how many tokens the output may have, its stop token among them. Hosts
    set it."""
    salt: str | None = None
    """Requests that differ in it learn nothing from each other's outputs. Hosts set
    it."""
    # How much there may be in JSON where the schema sets no bound: see `Bounds`. None:
    # as configured.
    max_whitespace: int | None = None
    max_digits: int | None = None

    def __post_init__(self) -> None:
        for name, known in _KNOWN.items():
            value = getattr(self, name)
            if value not in known:
                hint = did_you_mean(value, filter(None, known))
                raise SpecError(f"unknown {name} {shown(value)}", where=name, hint=hint)
        for name in ("strict", "close_before_length"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise SpecError(
                    f"must be true or false, not {shown(value)}",
                    where=name,
                    hint="write it without quotes",
                )
        for name in BOUNDS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value < 2**31):
                wrong = (
                    f"must be a whole number from 0 to 2147483647, not {shown(value)}"
                )
                raise SpecError(wrong, where=name, hint="0 sets no bound")
        if not isinstance(self.backend, str) or not self.backend:
            what = f"must be the name of a backend, not {shown(self.backend)}"
            raise SpecError(what, where="backend", hint="auto chooses one")
        # Frozen: normalise through the object itself, so that [1, 2] and (1, 2) make
        # equal specs. A caller's own class of text must not go where it is unknown.
        object.__setattr__(self, "text", str.__str__(self.text))
        check_text(self.text, self.kind)
        object.__setattr__(self, "backend", str.__str__(self.backend))
        if self.stop_token_ids is not None:
            object.__setattr__(
                self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids)
            )
        if self.start_after is not None:
            object.__setattr__(self, "start_after", triggers(self.start_after))

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, packed(self)

    @classmethod
    def json_schema(cls, schema: Any, **options: Any) -> OutputSpec:
        """JSON that satisfies a schema: a mapping, JSON text, true/false, or a type of
        Python."""
        document = _schema_document(schema)
        # Written first: it finds the mapping that holds itself, in which a walk never
        # ends.
        text = _dump(document, "json_schema")
        _check_schema(document, "json_schema", document)
        return cls._make("json_schema", text, options)

    @classmethod
    def json_object(cls, **options: Any) -> OutputSpec:
        """Any JSON object."""
        return cls._make("json_object", '{"type":"object"}', options)

    @classmethod
    def regex(cls, pattern: str, **options: Any) -> OutputSpec:
        """Text that a regular expression matches from its first to its last
        character."""
        if not isinstance(pattern, str):
            what = f"must be a string, not {type(pattern).__name__}"
            hint = 'for example "[a-z]+"; of a compiled regex pass its `pattern`'
            raise SpecError(what, where="regex", hint=hint)
        if not pattern:
            raise SpecError(
                "an empty regex allows only empty output",
                where="regex",
                hint="try `.*`",
            )
        return cls._make("regex", pattern, options)

    @classmethod
    def choice(cls, choices: Iterable[str], **options: Any) -> OutputSpec:
        """One of several texts."""
        if isinstance(choices, str | bytes | Mapping) or not isinstance(
            choices, Iterable
        ):
            raise SpecError(
                "must be a list of strings",
                where="choice",
                hint='for example ["yes", "no"]',
            )
        listed = list(choices)
        for index, text in enumerate(listed):
            if not isinstance(text, str):
                what = f"must be a string, not {shown(text)}"
                raise SpecError(what, where=f"choice[{index}]", hint="put it in quotes")
            check_text(text, f"choice[{index}]")
        if not listed:
            raise SpecError(
                "an empty list allows nothing",
                where="choice",
                hint='for example ["yes", "no"]',
            )
        return cls._make(
            "choice", _dump(list(dict.fromkeys(listed)), "choice"), options
        )

    @classmethod
    def grammar(
        cls, source: str, syntax: Syntax = "ebnf", **options: Any
    ) -> OutputSpec:
        """Text that a grammar derives: EBNF with a `root` rule, or Lark with a `start`
        rule."""
        if not isinstance(source, str):
            what = f"must be a string, not {type(source).__name__}"
            hint = 'for example root ::= "text"'
            raise SpecError(what, where="grammar", hint=hint)
        if not source.strip():
            raise SpecError(
                "is empty", where="grammar", hint='a minimal one: root ::= "text"'
            )
        return cls._make("grammar", source, {**options, "syntax": syntax})

    @classmethod
    def structural_tag(cls, tag: Any, **options: Any) -> OutputSpec:
        """Free text with constrained parts, as tool calls have: a structural tag, as a
        mapping or JSON."""
        document = tag.model_dump(mode="json") if hasattr(tag, "model_dump") else tag
        if isinstance(document, str):
            document = from_text(document, "structural_tag")
        if not isinstance(document, Mapping) or not (
            {"format", "structures"} & document.keys()
        ):
            raise SpecError(
                "must be an object with `format`, or with `structures` and `triggers`",
                where="structural_tag",
                hint='for example {"type": "structural_tag", "format": {...}}',
            )
        text = _dump({"type": "structural_tag", **document}, "structural_tag")
        spec = cls._make("structural_tag", text, options)
        whole = spec.document()
        for place, schema in schemas_in("structural_tag", whole):
            _check_schema(schema, "structural_tag", whole, place)
        return spec

    @classmethod
    def parse(cls, obj: Any) -> OutputSpec | None:
        """From any form that clients send; None when it asks for plain text.

        Takes an `OutputSpec`, a `TypedSpec`, None, a type, or as a mapping or JSON
        text: OpenAI's `response_format`, vLLM's `structured_outputs`, LMDeploy's
        `response_format`, and our own form, `{KIND: constraint, OPTION: value, ...}`,
        as `to_dict` writes it.
        """
        if obj is None or isinstance(obj, OutputSpec):
            return obj
        if not isinstance(obj, Mapping):
            if is_python(obj):
                asked = form_of(obj)
                typed: OutputSpec = getattr(cls, asked.kind)(asked.value)
                return typed
            inner = getattr(obj, "spec", None)  # of a TypedSpec
            if isinstance(inner, OutputSpec):
                return inner
        form = read(obj)
        if form is None:
            return None
        make = getattr(cls, form.kind)
        spec: OutputSpec = make(
            *([] if form.kind == "json_object" else [form.value]), **form.options
        )
        return spec

    @classmethod
    def _make(cls, kind: Kind, text: str, options: Mapping[str, Any]) -> OutputSpec:
        known = {*OPTIONS, "syntax"} if kind == "grammar" else set(OPTIONS)
        for name in options:
            if name not in known:
                raise SpecError(
                    f"unknown option {shown(name)}",
                    where=kind,
                    hint=did_you_mean(name, known),
                )
        return cls(kind, text, **options)

    def within(self, room: int | None, salt: str | None = None) -> OutputSpec:
        """The spec of an output that may have so many tokens, as a host knows, and what
        separates what its outputs teach from those of others."""
        same = self.room == room and self.salt == salt
        return self if same else replace(self, room=room, salt=salt)

    def settled(self, config: GuidedConfig) -> OutputSpec:
        """The spec with what it leaves to the configuration."""
        names: tuple[str, ...] = SETTLED
        if self.kind in ("regex", "choice", "grammar"):
            names = ("close_before_length",) if config.close_before_length else ()
        left = {
            name: getattr(config, name) for name in names if getattr(self, name) is None
        }
        return replace(self, **left) if left else self

    @property
    def is_json(self) -> bool:
        """True if its outputs are JSON documents."""
        return self.kind in ("json_schema", "json_object")

    def document(self) -> Any:
        """`text` as a value: the schema, the list of choices, the tag; the source of
        the other kinds."""
        if self.kind in ("regex", "grammar"):
            return self.text
        try:
            return json.loads(self.text)
        except RecursionError:  # it was written where the stack was less deep
            raise SpecError(
                "is nested too deep", where=self.kind, hint=_FLATTEN
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """The form that `parse` reads back to an equal spec; JSON-serialisable."""
        form: dict[str, Any] = {
            self.kind: True if self.kind == "json_object" else self.document()
        }
        if (
            self.kind == "json_schema"
            and isinstance(form[self.kind], dict)
            and "schema" in form[self.kind]
        ):
            # Bare, it would be taken for OpenAI's wrapper around a schema.
            form[self.kind] = {"schema": form[self.kind]}
        if self.kind == "grammar":
            form["syntax"] = self.syntax
        defaults = {field.name: field.default for field in fields(self)}
        for name in OPTIONS:
            value = getattr(self, name)
            if value != defaults[name]:
                form[name] = list(value) if isinstance(value, tuple) else value
        if self.start_after is not None:
            form["start_after"] = written(self.start_after)
        return form

    def summary(self) -> str:
        """A line for logs: the kind and the beginning of the constraint."""
        return f"{self.kind} {printable(self.text, 60)}"

    __str__ = summary


def _schema_document(schema: Any) -> Any:
    if isinstance(schema, Mapping | bool):
        return schema
    if isinstance(schema, str | bytes):
        return from_text(schema, "json_schema")
    if is_python(schema):
        return form_of(schema, texts=False).value
    raise SpecError(
        f"must be a mapping, JSON text or a type, not {type(schema).__name__}",
        where="json_schema",
        hint='for example {"type": "object", "properties": {...}}',
    )


def _check_schema(schema: Any, kind: Kind, document: Any, place: str = "#") -> None:
    """Refuse what is no JSON Schema, at its place in a spec's document."""
    try:
        check_schema(schema)
    except SpecError as error:
        where = place + error.where.removeprefix("#")
        raise told(
            SpecError(error.what, where=where, hint=error.hint), kind, document
        ) from None


def _dump(document: Any, where: str) -> str:
    # ASCII: lone surrogates and NULs stay escapes and reach no C string. Order is kept:
    # it is the order in which properties are generated.
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise SpecError("is nested too deep", where=where, hint=_FLATTEN) from None
    except (TypeError, ValueError) as error:
        if "Out of range" in str(error):
            raise SpecError(
                f"JSON has no Infinity and no NaN: {error}",
                where="#",
                hint="leave it out where there is no bound, or write a number of at most 308 digits",
            ) from None
        hint = "pass objects, lists, strings, numbers, true, false, null; the pattern of a compiled regex"
        raise SpecError(
            f"can't be written as JSON: {error}", where=where, hint=hint
        ) from None


_FLATTEN = "flatten it; recursion is written with $ref"


def check_is_spec(spec: object) -> None:
    """Raise SpecError for something else than an OutputSpec."""
    if not isinstance(spec, OutputSpec):
        what = f"must be an OutputSpec, not {shown(spec)}"
        raise SpecError(what, where=WHOLE, hint="OutputSpec.parse reads other forms")


def check_room(least: int, room: int | None, where: str = "max_tokens") -> None:
    """Refuse a request whose output can't end in time. `least`: tokens of the shortest
    one, 0 where outputs need not end; `where`: the name of the token limit."""
    if room is not None and room < least:
        raise RequestError(
            f"leaves {room} tokens; the shortest output of the spec takes {least}, its stop token included",
            where=where,
            hint=f"allow at least {least}, or set close_before_length to false",
        )


def spec_bytes(spec: OutputSpec, *texts: object) -> int:
    """Return the bytes that a memo holds with a spec and some texts. A token id takes
    40 bytes: the number, and its place in a tuple."""
    ids = len(spec.stop_token_ids or ())
    for each in spec.start_after or ():
        ids += len(each.tokens)
    return texts_bytes(spec.text, *texts) + 40 * ids


def packed(spec: OutputSpec) -> tuple[str, int | None, str | None]:
    """A spec as a text, for other processes; and its room and its salt, which differ
    from request to request. What was packed or unpacked lately takes a look into a
    memo."""
    return _packed(spec.within(None)), spec.room, spec.salt


def unpacked(text: str, room: int | None = None, salt: str | None = None) -> OutputSpec:
    """Return the spec that was packed: the same object for the same text."""
    return _unpacked(text).within(room, salt)


@remembered(spec_bytes)
def _packed(spec: OutputSpec) -> str:
    options = {field.name: getattr(spec, field.name) for field in fields(spec)}
    del options["text"]
    if spec.start_after is not None:
        options["start_after"] = written(spec.start_after)
    return f"{json.dumps(options)}\0{spec.text}"


@remembered(lambda text, spec: spec_bytes(spec, text))
def _unpacked(text: str) -> OutputSpec:
    options, _, own = text.partition("\0")
    return OutputSpec(text=own, **json.loads(options))


@remembered(spec_bytes)
def language_of(spec: OutputSpec) -> OutputSpec:
    """The part of a spec that decides its grammar; the rest belongs to each request."""
    own = (spec.room, spec.salt, spec.stop_token_ids, spec.start_after)
    if own == (None, None, None, None):
        return spec
    return replace(spec, room=None, salt=None, stop_token_ids=None, start_after=None)


_of_language = attrgetter("kind", "syntax", *SETTLED, "backend")
"""The fields that decide a spec's grammar besides its text."""


@remembered(spec_bytes)
def identity_of(spec: OutputSpec, *, triggers: bool = False) -> bytes:
    """A digest of the part of a spec that decides its grammar, or of that and its
    `triggers`. Memos keep it in place of the spec, whose text may be long."""
    after = spec.start_after if triggers else None
    options = repr((*_of_language(spec), after))
    digest = hashlib.blake2b(options.encode(), digest_size=24)
    digest.update(b"\0")
    digest.update(spec.text.encode())
    return digest.digest()
