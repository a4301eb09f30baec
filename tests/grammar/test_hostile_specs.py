"""Specs made to hurt: each ends in an error of this package or in a grammar that works,
in bounded time, and the next ordinary request to the same compiler is served.

They run in a child process: a crash or a hang there is a failure
here. Run as a script, this file is that child.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

Schema = dict[str, Any]
Make = Callable[[], OutputSpec]


@dataclass(frozen=True)
class Case:
    """A hostile spec; what a working grammar of it accepts; which error it has to be,
    if it has to."""

    make: Make
    text: str | None = None
    error: str = ""
    """`ErrorClass: words of its message`; empty: an error of any kind, or a grammar
    that takes `text`."""


def schema(document: Any, text: str | None = None, error: str = "") -> Case:
    return Case(lambda: OutputSpec.json_schema(document), text, error)


def regex(pattern: str, text: str | None = None, error: str = "") -> Case:
    return Case(lambda: OutputSpec.regex(pattern), text, error)


def grammar(source: str, text: str | None = None, error: str = "") -> Case:
    syntax = "ebnf" if "::=" in source else "lark"
    return Case(lambda: OutputSpec.grammar(source, syntax), text, error)


def nested(depth: int, wrap: Callable[[Any], Schema]) -> Any:
    inner: Any = {"type": "null"}
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def in_object(inner: Any) -> Schema:
    return {"type": "object", "properties": {"a": inner}, "required": ["a"]}


def in_array(inner: Any) -> Schema:
    return {"type": "array", "items": inner, "minItems": 1}


def in_union(inner: Any) -> Schema:
    return {"anyOf": [inner, {"type": "boolean"}]}


def integers(count: int) -> Schema:
    return {f"p{i}": {"type": "integer"} for i in range(count)}


def chain(length: int, wrap: Callable[[Any], Schema] = lambda inner: inner) -> Schema:
    """Definitions that refer to one another, the last of them to nothing."""
    links = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "null"}}}


def text_schema(**keywords: Any) -> Schema:
    return {"type": "string", **keywords}


DEEP = "CompileLimitError: deep"
LIMIT = "CompileLimitError: over the limit"

CASES: dict[str, Case] = {
    # Size
    "objects 400 deep": schema(nested(400, in_object), error=DEEP),
    "arrays 400 deep": schema(nested(400, in_array), error=DEEP),
    "unions 400 deep": schema(nested(400, in_union), error=DEEP),
    "arrays 150 deep": schema(nested(150, in_array), "[" * 150 + "null" + "]" * 150),
    "objects 100,000 deep, as text": Case(
        lambda: OutputSpec.json_schema(
            '{"properties":{"a":' * 100_000 + "{}" + "}}" * 100_000
        ),
        error="SpecError: can't be read",
    ),
    "a tag 400 deep": Case(
        lambda: OutputSpec.structural_tag(
            {"format": nested(400, lambda inner: {"content": inner})}
        )
    ),
    "2,000 optional properties": schema(
        {"type": "object", "properties": integers(2_000)}, '{"p1999":1}'
    ),
    "20,000 properties": schema(
        {"type": "object", "properties": integers(20_000)}, error=LIMIT
    ),
    "200 objects of 60 properties": schema(
        {
            "type": "object",
            "properties": {
                f"o{i}": {"type": "object", "properties": integers(60)}
                for i in range(200)
            },
        },
        "{}",
    ),
    "an enum of 50,000": schema(
        {"enum": [f"value {i}" for i in range(50_000)]}, error=LIMIT
    ),
    "50,000 choices": Case(
        lambda: OutputSpec.choice([f"value {i}" for i in range(50_000)]), error=LIMIT
    ),
    "a constant of 500 KB": schema({"const": "x" * 500_000}),
    "a schema of 1 MB": schema(
        {"type": "null", "description": "x" * 1_000_000}, "null"
    ),
    "a schema of 1 MB, all of it definitions": schema(
        {
            "type": "null",
            "$defs": {f"d{i}": in_object({"enum": ["x" * 200]}) for i in range(3_400)},
        },
        "null",
    ),
    "a schema of 2 MB": schema(
        {"type": "null", "description": "x" * 2_000_000}, error=LIMIT
    ),
    "a regex of 1 MB": regex("|".join(["ab"] * 333_000), "ab"),
    "a grammar of 10,000 rules": grammar(
        "\n".join(
            [
                "start: r0",
                *(f'r{i}: "a" r{i + 1}?' for i in range(10_000)),
                'r10000: "b"',
            ]
        )
    ),
    # Repetition
    "a regex that repeats a billion times": regex("[ab]{1000000000}", error=LIMIT),
    "a regex that repeats 1000 x 1000 x 1000 times": regex(
        "(([ab]c?){1000}d?){1000}(((a{1000}){1000}){1000})", error=LIMIT
    ),
    "a regex that repeats 900 x 900 times": regex("((ab?){0,900}c){0,900}", "aabc"),
    "a bound of 5,000 digits": regex("a{" + "9" * 5_000 + "}"),
    "a pattern with a bound of 5,000 digits": schema(
        text_schema(pattern="a{" + "9" * 5_000 + "}")
    ),
    "a grammar with a bound of 5,000 digits": grammar(
        'root ::= "a"{0,' + "9" * 5_000 + "}"
    ),
    "a pattern that repeats 10,000 times": schema(
        text_schema(pattern="^[a-z]{0,10000}$"), '"abc"'
    ),
    "a pattern that repeats 200 x 200 times": schema(
        text_schema(pattern="^((ab?){0,200}c){0,200}$"), '"aabc"'
    ),
    "patterns that search, 30 together": schema(
        {"allOf": [text_schema(pattern=f"a{{{i + 1}}}.*b") for i in range(30)]},
        '"' + "a" * 30 + 'b"',
    ),
    "maxLength of 10^30": schema(text_schema(maxLength=10**30), '"abc"'),
    "maxItems of 10^30": schema(
        {"type": "array", "items": {"type": "null"}, "maxItems": 10**30}, "[null]"
    ),
    "minItems of 100,000": schema(
        {"type": "array", "items": {"type": "null"}, "minItems": 100_000}
    ),
    "lengths of 100,000 beside a pattern": schema(
        text_schema(pattern="[ab]c", maxLength=100_000), '"ac"'
    ),
    "a grammar that repeats 1000 x 1000 x 1000 times": grammar(
        'root ::= ((("a"{0,1000} "b"){0,1000} "c"){0,1000})', "aabc"
    ),
    "100,000 groups inside each other": regex("(" * 100_000 + "a" + ")" * 100_000),
    "a pattern of 3,000 groups inside each other": schema(
        text_schema(pattern="(" * 3_000 + "a" + ")" * 3_000)
    ),
    "a Lark grammar of 100,000 groups": grammar(
        "start: " + "(" * 100_000 + '"a"' + ")" * 100_000
    ),
    "an EBNF grammar of 100,000 groups": grammar(
        "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000
    ),
}

CASES |= {
    # Recursion
    "left recursion, EBNF": grammar('root ::= root "a" | "b"', "baa"),
    "left recursion, Lark": grammar('start: start "a" | "b"', "baa"),
    "recursion without an end, EBNF": grammar('root ::= "a" root'),
    "recursion without an end, Lark": grammar('start: "a" start'),
    "recursion through nothing, EBNF": grammar('root ::= root | "" root | ""'),
    "recursion through nothing, Lark": grammar('start: start | x start | x\nx: ""'),
    "a schema that is itself": schema({"$ref": "#"}),
    "a schema of nothing but itself, required": schema(
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    ),
    "$ref in a ring": schema(
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        }
    ),
    "mutual $ref": schema(
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
                "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
            },
        },
        '[{"a":[{}]}]',
    ),
    "not itself": schema({"not": {"$ref": "#"}}),
    "3,000 references in a chain": schema(chain(3_000), "null"),
    "3,000 references through arrays": schema(chain(3_000, in_array)),
    "a mapping that holds itself": Case(lambda: _ring(), error="SpecError: "),
    "a billion laughs": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{
                    f"d{i}": {
                        "type": "array",
                        "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 10,
                    }
                    for i in range(30)
                },
                "d30": {"type": "null"},
            },
        }
    ),
    "20 unions to multiply out": schema(
        {
            "allOf": [
                {
                    "anyOf": [
                        {"properties": {f"{name}{i}": {"type": kind}}}
                        for name, kind in (("a", "null"), ("b", "string"))
                    ]
                }
                for i in range(20)
            ]
        }
    ),
    # Bytes and numbers
    "invalid UTF-8": Case(
        lambda: OutputSpec.json_schema(b'{"const":"\xff\xfe"}'),
        error="SpecError: is not UTF-8",
    ),
    "NUL in a constant": schema({"const": "a\0b"}, '"a\\u0000b"'),
    "NUL in a name": schema(
        {"type": "object", "properties": {"a\0b": {"type": "null"}}}, "{}"
    ),
    "NUL in a regex": regex("a\0b", "a\0b"),
    "NUL in a choice": Case(lambda: OutputSpec.choice(["a\0b", "c"]), "c"),
    "NUL in an EBNF grammar": grammar('root ::= "a\0b"'),
    "NUL in a Lark grammar": grammar('start: "a\0b"'),
    "NUL in a pattern": schema(text_schema(pattern="^a\0b$")),
    "a lone surrogate in a constant": schema({"enum": ["\ud800", "b"]}),
    "a lone surrogate in a name": schema(
        {"type": "object", "properties": {"\udfff": {"type": "null"}}}
    ),
    "a lone surrogate in a pattern": schema(text_schema(pattern="^\ud800$")),
    "a number of 4,000 digits": schema({"type": "integer", "minimum": 10**4_000 - 1}),
    "a number of 5,000 digits, as text": Case(
        lambda: OutputSpec.json_schema('{"minimum":' + "9" * 5_000 + "}")
    ),
    "1e400": Case(
        lambda: OutputSpec.json_schema('{"type":"number","maximum":1e400}'),
        error="SpecError: ",
    ),
    "a range of 60 digits": schema(
        {"type": "integer", "minimum": -(10**60), "maximum": 10**60 + 7}, "-12"
    ),
    "multipleOf 1e-300": schema({"type": "number", "multipleOf": 1e-300}),
    "multipleOf a large prime": schema(
        {"type": "integer", "multipleOf": 1_000_000_007}
    ),
    # What no grammar expresses
    "lookahead": regex("(?=a)[ab]"),
    "lookahead in a pattern": schema(text_schema(pattern="^(?=.*a)(?!b)b*a$")),
    "no grammar at all": grammar("\x01\x02 ::= \x03"),
}


def _ring() -> OutputSpec:
    document: Schema = {"type": "object"}
    document["properties"] = {"a": document}
    return OutputSpec.json_schema(document)


class Child:
    """A process with one compiler, started when it is first asked and again when it is
    gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, name: str) -> dict[str, Any]:
        process = self._process or self._started()
        process.stdin.write(name.encode() + b"\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], WALL_SECONDS)
        line = process.stdout.readline() if readable else b""
        if not line:
            how = (
                f"ended with code {process.wait()}"
                if readable
                else f"said nothing for {WALL_SECONDS} s"
            )
            self.stop()
            pytest.fail(f"the process with the compiler {how}")
        return json.loads(line)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        return self._process


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.stop()


@pytest.mark.parametrize("name", CASES)
def test_an_error_or_a_working_grammar_and_the_next_is_served(child, name):
    case = CASES[name]
    report = child.serve(name)
    assert report["next"] is True
    if report["error"]:
        kind = getattr(errors, report["error"], None)
        assert kind is not None, report
        assert issubclass(kind, GuidedError), report
        assert report["what"], report
        assert report["where"], report
        assert kind is not errors.CompileLimitError or report["hint"], report
    else:
        assert report["works"] is True, report
    if case.error:
        kind_name, _, words = case.error.partition(": ")
        assert report["error"] == kind_name, report
        assert words in report["what"], report


def test_remote_references_are_never_fetched():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        for reference in (
            f"http://127.0.0.1:{port}/s.json",
            f"http://127.0.0.1:{port}/s.json#/$defs/a",
            "other.json",
        ):
            with pytest.raises(
                SpecError,
                match=r"references are never fetched.*put that schema under \$defs",
            ):
                OutputSpec.json_schema(
                    {"type": "object", "properties": {"a": {"$ref": reference}}}
                )
        with pytest.raises(TimeoutError):
            server.accept()


def served(compiler: GrammarCompiler, name: str) -> dict[str, Any]:
    """What became of a case, and of an ordinary spec after it."""
    report: dict[str, Any] = {"error": "", "works": None}
    start = time.perf_counter()
    try:
        report["works"] = works(compiler, CASES[name].make(), CASES[name].text)
    except Exception as error:
        report |= {
            "error": type(error).__name__,
            "what": str(getattr(error, "what", error))[:500],
        }
        report |= {
            field: str(getattr(error, field, ""))[:200] for field in ("where", "hint")
        }
    report["seconds"] = round(time.perf_counter() - start, 3)
    # Never the same twice: it must not come out of the cache.
    report["next"] = works(
        compiler, OutputSpec.json_schema({"const": name}), json.dumps(name)
    )
    return report


def works(compiler: GrammarCompiler, spec: OutputSpec, text: str | None) -> bool:
    """Whether a spec's grammar shows a mask and takes a text that satisfies it."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    stops = compiler.vocabulary.stop_token_ids
    matcher = backend.start(grammar, stops)
    mask = np.zeros((1, compiler.vocabulary.words), np.int32)
    backend.batch([matcher]).fill(mask, [0])
    return bool(mask.any()) and (
        text is None or (matcher.accept_text(text.encode()) and matcher.complete)
    )


def main() -> None:
    # Answers go where nothing else writes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    vocabulary = Vocabulary.from_tokens(
        [*(bytes([byte]) for byte in range(256)), b"</s>"], [256]
    )
    config = GuidedConfig(
        threads=2, compile_seconds=COMPILE_SECONDS, compile_processes=1
    )
    compiler = GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )
    for line in sys.stdin:
        print(json.dumps(served(compiler, line.rstrip("\n"))), file=answers, flush=True)
    compiler.close()


if __name__ == "__main__":
    main()
