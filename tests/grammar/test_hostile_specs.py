"""Specs made to hurt: each ends in an error of this package or in a grammar that works,
in bounded time, and the next ordinary request to the same compiler is served.

Those that can be written down are in `hostile_specs.json`. They run in a child process:
a crash or a hang there is a failure here.
"""

from __future__ import annotations

import functools
import json
import socket
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from guided_plugin import errors
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, SpecError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

COMPILE_SECONDS = 2.0
# For each candidate a compile and the start of the helper after one that was stopped.
WALL_SECONDS = 60.0


class Case(NamedTuple):
    """A hostile spec; what a working grammar of it accepts; which error it has to be,
    if it has to."""

    kind: str
    """What of `OutputSpec` makes it."""
    source: Any
    text: str | None = None
    error: str = ""
    """`ErrorClass: words of its message`; empty: an error of any kind, or a grammar
    that takes `text`."""


def schema(document, text=None, error=""):
    return Case("json_schema", document, text, error)


def grammar(source, syntax):
    return Case("parse", {"grammar": source, "syntax": syntax})


NULL = {"type": "null"}


def in_object(inner):
    return {"type": "object", "properties": {"a": inner}, "required": ["a"]}


def in_array(inner):
    return {"type": "array", "items": inner, "minItems": 1}


def in_union(inner):
    return {"anyOf": [inner, {"type": "boolean"}]}


def nested(depth, wrap, inner=NULL):
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def properties(count, child):
    return {
        "type": "object",
        "properties": {f"p{number}": child for number in range(count)},
    }


def chain(length, wrap):
    """Definitions that refer to one another, the last of them to nothing."""
    links = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": NULL}}


def ten_of(inner):
    return {"type": "array", "prefixItems": [inner] * 10}


def either(number):
    return {"anyOf": [{"properties": {f"{name}{number}": NULL}} for name in "ab"]}


RING: dict[str, Any] = {"type": "object"}
RING["properties"] = {"a": RING}
DEEP = "CompileLimitError: deep"
LIMIT = "CompileLimitError: over the limit"
INTEGER = {"type": "integer"}
MANY = [f"value {i}" for i in range(50_000)]
GROUPS = "(" * 100_000 + "{}" + ")" * 100_000
DIGITS = "9" * 5_000
RULES = "\n".join(f'r{i}: "a" r{i + 1}?' for i in range(10_000))
SEARCHES = [{"pattern": f"a{{{i + 1}}}.*b"} for i in range(30)]
LARGE_DEFS = {f"d{i}": {"enum": ["x" * 250]} for i in range(3_700)}

CASES = {
    # Size
    "objects 400 deep": schema(nested(400, in_object), error=DEEP),
    "unions 400 deep": schema(nested(400, in_union), error=DEEP),
    "arrays 150 deep": schema(nested(150, in_array), "[" * 150 + "null" + "]" * 150),
    "objects 100,000 deep, as text": schema(
        '{"properties":{"a":' * 100_000 + "{}" + "}}" * 100_000,
        error="SpecError: is not JSON",
    ),
    "a tag 400 deep": Case(
        "structural_tag", {"format": nested(400, lambda inner: {"content": inner})}
    ),
    "20,000 properties": schema(
        properties(20_000, INTEGER), error="CompileLimitError: nests 20001 rules"
    ),
    "200 objects of 60": schema(properties(200, properties(60, INTEGER)), "{}"),
    "an enum of 50,000": schema({"enum": MANY}, error=LIMIT),
    "50,000 choices": Case("choice", MANY, error=LIMIT),
    "a constant of 500 KB": schema({"const": "x" * 500_000}),
    "a schema of 1 MB": schema({**NULL, "description": "x" * 1_000_000}, "null"),
    "a schema of 1 MB of definitions": schema({**NULL, "$defs": LARGE_DEFS}, "null"),
    "a schema of 2 MB": schema({**NULL, "description": "x" * 2_000_000}, error=LIMIT),
    "a regex of 1 MB": Case("regex", "|".join(["ab"] * 333_000), "ab"),
    "a grammar of 10,000 rules": grammar(f'start: r0\n{RULES}\nr10000: "b"', "lark"),
    # Repetition
    "a bound of 5,000 digits": Case("regex", f"a{{{DIGITS}}}"),
    "a pattern with a bound of 5,000 digits": schema({"pattern": f"a{{{DIGITS}}}"}),
    "a grammar with a bound of 5,000 digits": grammar(
        f'root ::= "a"{{0,{DIGITS}}}', "ebnf"
    ),
    "patterns that search, 30 together": schema(
        {"type": "string", "allOf": SEARCHES}, '"' + "a" * 30 + 'b"'
    ),
    "100,000 groups inside each other": Case("regex", GROUPS.format("a")),
    "a pattern of 3,000 groups": schema({"pattern": "(" * 3_000 + "a" + ")" * 3_000}),
    "a Lark grammar of 100,000 groups": grammar(
        "start: " + GROUPS.format('"a"'), "lark"
    ),
    "an EBNF grammar of 100,000 groups": grammar(
        "root ::= " + GROUPS.format('"a"'), "ebnf"
    ),
    # Recursion
    "3,000 references in a chain": schema(chain(3_000, dict), "null"),
    "3,000 references through arrays": schema(chain(3_000, in_array)),
    "a mapping that holds itself": schema(RING, error="SpecError: "),
    "a billion laughs": schema(chain(30, ten_of)),
    "20 unions to multiply out": schema({"allOf": [either(i) for i in range(20)]}),
    # Bytes and numbers
    "invalid UTF-8": schema(b'{"const":"\xff\xfe"}', error="SpecError: is not JSON"),
    "a number of 4,000 digits": schema({"minimum": 10**4_000 - 1}),
    "a number of 5,000 digits, as text": schema(f'{{"minimum":{DIGITS}}}'),
}
WRITTEN = json.loads(Path(__file__).with_name("hostile_specs.json").read_bytes())
CASES |= {name: Case(**case) for name, case in WRITTEN.items()}


@pytest.fixture(scope="module")
def child():
    """A process with one compiler."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", CASES)
def test_an_error_or_a_working_grammar_and_the_next_is_served(child, name):
    kind, _, words = CASES[name].error.partition(": ")
    report = child.submit(served, name).result(WALL_SECONDS)
    assert report["next"] is True
    error = report["error"]
    assert not kind or error == kind, report
    if not error:
        assert report["works"] is True, report
        return
    assert issubclass(getattr(errors, error, type(None)), GuidedError), report
    assert words in report["what"], report
    assert report["what"], report
    assert report["where"], report
    assert report["hint"] or error != "CompileLimitError", report


def test_remote_references_are_never_fetched():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/s.json"
        says = r"put that schema under \$defs.*nothing is fetched"
        for reference in (url, f"{url}#/$defs/a", "other.json"):
            with pytest.raises(SpecError, match=says):
                OutputSpec.json_schema({"properties": {"a": {"$ref": reference}}})
        with pytest.raises(TimeoutError):
            server.accept()


@functools.cache
def compiler_of_the_child():
    tokens = [*(bytes([byte]) for byte in range(256)), b"</s>"]
    config = GuidedConfig(
        threads=2, compile_seconds=COMPILE_SECONDS, compile_processes=1
    )
    return GrammarCompiler(
        Vocabulary.from_tokens(tokens, [256]),
        config=config,
        plugins=Plugins(entry_points=False),
    )


def served(name):
    """What became of a case, and of an ordinary spec after it."""
    compiler = compiler_of_the_child()
    report = {"error": ""}
    case = CASES[name]
    try:
        spec = getattr(OutputSpec, case.kind)(case.source)
        report["works"] = works(compiler, spec, case.text)
    except Exception as error:
        report["error"] = type(error).__name__
        report["what"] = str(error)
        for part in ("what", "where", "hint"):
            report[part] = str(getattr(error, part, report.get(part, "")))[:500]
    # Never the same twice: it must not come out of the cache.
    ordinary = OutputSpec.json_schema({"const": name})
    report["next"] = works(compiler, ordinary, json.dumps(name))
    return report


def works(compiler, spec, text):
    """Whether a spec's grammar shows a mask and takes a text that satisfies it."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    matcher = backend.start(grammar, compiler.vocabulary.stop_token_ids)
    mask = np.zeros((1, compiler.vocabulary.words), np.int32)
    backend.batch([matcher]).fill(mask, [0])
    if text is None:
        return bool(mask.any())
    return bool(mask.any()) and takes(matcher, text)


def takes(matcher, text):
    return matcher.accept_text(text.encode()) and matcher.complete
