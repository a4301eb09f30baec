"""What `test_fuzz_inputs` feeds: each reader of the package, with inputs to begin
with."""

from __future__ import annotations

import functools
import json
import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from mutations import copied, mutate_bytes, mutate_text, mutate_value, nodes
from schemas import random_schema
from tag_forms import FORMS, VOCABULARY, json_of, tag, triggered
from vocabularies import BYTES

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.helper_process import Answer, from_helper
from guided_plugin.compiling.limits import check_limits
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    BudgetError,
    GrammarError,
    GuidedError,
    PipelineError,
    PluginError,
    SpecError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.llguidance.sources import lark_of
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.keywords import KEYWORDS
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.ecma import parse
from guided_plugin.spec.schema import schemas_in
from guided_plugin.spec.uses import uses_of
from guided_plugin.step import Admission
from guided_plugin.worker.messages import (
    Ends,
    Outcome,
    Ready,
    Synced,
    Verdict,
    from_worker,
)

CONFIG = GuidedConfig(threads=1, compile_seconds=10.0)


@dataclass(frozen=True, slots=True)
class Target:
    """A reader of inputs."""

    name: str
    seeds: tuple[Any, ...]
    run: Callable[[Any], object]
    errors: tuple[type[Exception], ...]
    """What it may raise."""
    mutate: Callable[[Random, Any, list[Any]], Any]


_TABLES = json.loads(Path(__file__).with_suffix(".json").read_bytes())
"""A schema, specs in the forms of clients, values that no keyword takes, grammars."""
_SCHEMA = _TABLES["schema"]
_CALLS = triggered(
    tag(
        "<f=a>",
        json_of(_SCHEMA),
        "</f>",
    ),
    triggers=("<f=",),
)
_TAGS = tuple(
    {"type": "structural_tag", "format": each} for each in (_CALLS, *FORMS.values())
)

_FORMS = (
    *_TABLES["forms"],
    {"structural_tag": _TAGS[0]},
    *_TAGS[:3],
    b'{"choice": ["a"]}',
)
_NAMES = """type value schema name format json regex choice grammar structural_tag syntax
    stop_token_ids start_after whitespace backend begin end content tags triggers elements
    separator at_least_one stop_after_first excludes pattern json_schema style token string"""
_WORDS = [*KEYWORDS, *_NAMES.split(), 7, None, ("a",), "a\n\x1b[1m"]


class Odd:
    """A value that no message can show."""

    def __repr__(self):
        raise RuntimeError("no repr")


def _deep(depth, wrap=""):
    value = {}
    for _ in range(depth):
        value = {wrap: value} if wrap else [value]
    return value


def _circle():
    circle = {"type": "object"}
    circle["properties"] = {"a": circle}
    return circle


_ODD = (
    *json.loads("""[null, true, false, 0, -1, 1.5, 1e308, NaN, Infinity, -0.0, 1e-320, 3.0,
    1e22, 9223372036854775808, -2147483648, "", "a", "\\n\\u001b[31m\\u0000", "\\ud800",
    "é\\u202e", "#", "#/", "^$", [], {}, [[]], [{}], {"type": "object"}]"""),
    *(10**400, 10**5000, "a" * 5000, b"{}", b"\xff", (1, 2), frozenset({1}), int, 1j),
    *(Odd(), object(), set(), bytearray(), {1: 2}, {(): 1}, {None: None}),
    *(_deep(depth) for depth in (90, 400, 980, 3000)),
    *(_deep(300, wrap) for wrap in ("not", "items", "properties", "elements")),
    *(
        _deep(5000, "items"),
        _circle(),
        [*range(3000)],
        {f"k{i}": {} for i in range(300)},
    ),
)
_SYNTAX = r"""{2,3} {0,999999999} {1000} (?= (?! (?<= (?: [^ a-z (?i) \d \p{L} \b \1
    \u{1F600} \ud83d \c \x [[:alpha:]] ::= %llguidance %json %ignore <tool> #/$defs/a ~1 %25
    null true 1e999 (((( a{1,9}{1,9}"""
_PIECES = (
    *"()[]{}*+?|^$\\.-\x00\ud800\U0001f600é\u2028\n\r\"',:/&~",
    *_SYNTAX.split(),
    *("root ::= ", "start: ", "%json {}", "\x1b[2J", "0" * 500, "|" * 50),
    *("(" * 2000, "[a" * 150, "a*" * 2000),
)


def _values(chance, value, corpus):
    """Some changes; what is new is odd, or a part of another input."""
    pool = [*chance.sample(_ODD, 4), *chance.sample(nodes(chance.choice(corpus)), 1)]
    for _ in range(chance.choice((1, 1, 2, 4))):
        value = mutate_value(
            chance,
            value,
            pool,
            _WORDS,
        )
    return value


def _texts(chance, text, corpus):
    for _ in range(chance.choice((1, 1, 2, 4))):
        text = mutate_text(
            chance,
            text,
            _PIECES,
            corpus,
        )
    return text[:20_000]


def _parse(value):
    spec = OutputSpec.parse(value)
    if spec is None:
        return
    again = OutputSpec.parse(spec.to_dict())
    if (
        again != spec
        or hash(again) != hash(spec)
        or pickle.loads(pickle.dumps(spec)) != spec
    ):
        raise AssertionError("another spec comes back")
    if not spec.summary().isprintable():
        raise AssertionError("a summary that no log should hold")


_TOKENIZERS = Tokenizers(VOCABULARY)


def _lower(spec):
    check_limits(spec, CONFIG)
    lark_of(spec, _TOKENIZERS)


def _lower_schema(schema):
    """As the llguidance backend writes it."""
    wide = isinstance(schema, dict) and len(schema) % 2
    options = {"strict": False, "whitespace": "flexible"} if wide else {}
    _lower(OutputSpec.json_schema(schema, **options))


@functools.cache
def _compiler():
    return GrammarCompiler(
        BYTES,
        config=CONFIG,
        plugins=Plugins(entry_points=False),
    )


def _compile(form):
    """Down to a grammar."""
    spec = OutputSpec.parse(form)
    if spec is None:
        return
    try:
        _compiler().compile(spec)
    except PluginError as error:
        if not error.what.startswith("no backend named"):  # a defect of a backend
            raise AssertionError(str(error)) from error
        raise SpecError(error.what) from error


_WRONG = [10**30, 10**400, *_TABLES["wrong"]]


def _keywords(chance, value, corpus):
    """A schema in one of the ways to send it, with keywords whose values are of another
    type."""
    schema = value[1]
    for _ in range(chance.choice((1, 1, 2))):
        if chance.random() < 0.3:
            schema = _values(
                chance,
                schema,
                [other for _, other in corpus],
            )
            continue
        schema = copied(schema)
        objects = [node for node in nodes(schema) if isinstance(node, dict)]
        if objects:
            keyword = chance.choice(list(KEYWORDS))
            chance.choice(objects)[keyword] = copied(chance.choice(_WRONG))
    return chance.choice(list(_WAYS)), schema


def _call(schema, **options):
    """What vLLM makes of a tool."""
    begin = '<tool_call>\n{"name": "save", "arguments": '
    called = tag(
        begin,
        json_of(schema, **options),
        "}\n</tool_call>",
    )
    return {
        "type": "structural_tag",
        "format": triggered(called, triggers=("<tool_call>",)),
    }


_WAYS = {
    "tool": _call,
    "tool in XML": lambda schema: _call(schema, style="qwen_xml"),
    "older tag": lambda schema: {
        "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}],
        "triggers": ["<f"],
    },
    "one of two": lambda schema: {
        "structural_tag": {
            "format": {"type": "or", "elements": [json_of(schema), json_of({})]}
        }
    },
    "schema": lambda schema: {"json_schema": {"schema": schema}},
}


def _send(request):
    """A schema inside something else, all the way, and what tells people of its
    keywords."""
    way, schema = request
    form = _WAYS[way](schema)
    _parse(form)
    spec = OutputSpec.parse(form)
    if spec is not None:
        for _, inner in schemas_in(spec.kind, spec.document()):
            uses_of(inner, ("pattern", "uniqueItems"))
    _compile(form)


_SOURCES = r"""^[a-z]{2,5}$ a|b(?:c)? \p{Lu}\P{Script=Greek}+ (?=a)[^b]{3}$ (?!x).*?y
    \u{1F600}|\ud83d\ude00 ^(?<n>\d{3}-)?\w+@\S+\.[a-z]$ [\d\-\]a-f]{0,9} ^$ (a*)* \cA\x41\0"""
_PATTERNS = ("", *_SOURCES.split())
_SCHEMAS = (_SCHEMA, *(random_schema(Random(number)) for number in range(60)))

_ERROR = BudgetError(
    "took long",
    where="x",
    hint="y",
    request_id="r",
)
_FROM_WORKER = (
    Ready(),
    Verdict(
        3,
        Admission("llguidance", ("uniqueItems",), 3),
    ),
    Verdict(4, _ERROR),
    Outcome(
        7,
        _ERROR,
        12,
    ),
    Outcome(7, "why"),
    Synced(1),
    Ends("r", True),
)
_FROM_HELPER = (
    Answer(None),
    Answer(_ERROR, True),
    Answer(
        Prepared(
            OutputSpec.regex("a"),
            "llguidance",
            b"x" * 300,
        )
    ),
)


def _frame(message):
    return _frame_of(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def _frame_of(body):
    return len(body).to_bytes(8, "little") + body


_FRAMES = (
    *(("worker", _frame(message)) for message in _FROM_WORKER),
    *(("helper", _frame(message)) for message in _FROM_HELPER),
    ("worker", b"".join(map(_frame, _FROM_WORKER))),
    ("worker", _frame_of(b"\x80\x04N\x72\xff\xff\xff\x7f.")),
    ("worker", _frame_of(b"cos\nsystem\n(S'true'\ntR.")),
    ("worker", b"\xff" * 8),
)
_KNOWN = (
    *(str, bytes, int, float, tuple, list, frozenset, type(None), type),
    GuidedError,
    OutputSpec,
    Prepared,
    Admission,
    *map(type, (*_FROM_WORKER, *_FROM_HELPER)),
)


def _receive(input_):
    """Frames of a worker or of a helper that went wrong, as they arrive on a socket."""
    sender, data = input_
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.setblocking(False)
            theirs.send(data)
        channel = Channel(ours, {"worker": from_worker, "helper": from_helper}[sender])
        while messages := channel.receive():
            if not all(isinstance(message, _KNOWN) for message in messages):
                raise AssertionError(f"a message of another kind: {messages!r}")


def _frames(chance, value, corpus):
    sender, data = value
    if chance.random() < 0.7 and len(data) > 8:  # the frame stays whole
        return sender, _frame_of(
            mutate_bytes(
                chance,
                data[8:],
                [other[8:] for _, other in corpus],
            )
        )
    return sender, mutate_bytes(
        chance,
        data,
        [other for _, other in corpus],
    )


_COMPILED = (
    *_FORMS,
    *({"grammar": text} for text in _TABLES["grammars"]),
    *({"regex": text} for text in _PATTERNS),
    *({"json_schema": schema} for schema in _SCHEMAS[:30]),
)
_INSIDE = tuple((way, schema) for way in _WAYS for schema in _SCHEMAS[:6])
_REFUSED = (SpecError, GrammarError)
_CLOSED = (PipelineError, ChannelClosedError)


def _lower_regex(text):
    _lower(OutputSpec.regex(text))


def _lower_tag(value):
    _lower(OutputSpec.structural_tag(value))


TARGETS = {
    target.name: target
    for target in (
        Target(
            "parse",
            _FORMS,
            _parse,
            (SpecError,),
            _values,
        ),
        Target(
            "ecma",
            _PATTERNS,
            parse,
            (UnsupportedSpecError,),
            _texts,
        ),
        Target(
            "regex",
            _PATTERNS,
            _lower_regex,
            _REFUSED,
            _texts,
        ),
        Target(
            "lower",
            _SCHEMAS,
            _lower_schema,
            _REFUSED,
            _values,
        ),
        Target(
            "tags",
            _TAGS,
            _lower_tag,
            _REFUSED,
            _values,
        ),
        Target(
            "compile",
            _COMPILED,
            _compile,
            _REFUSED,
            _values,
        ),
        Target(
            "inside",
            _INSIDE,
            _send,
            _REFUSED,
            _keywords,
        ),
        Target(
            "channel",
            _FRAMES,
            _receive,
            _CLOSED,
            _frames,
        ),
    )
}
