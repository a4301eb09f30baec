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

Schema = dict[str, Any]


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

    def make(self):
        made: OutputSpec = getattr(OutputSpec, self.kind)(self.source)
        return made


def schema(document, text=None, error=""):
    return Case("json_schema", document, text, error)


def string(text=None, error="", **keywords):
    return schema({"type": "string", **keywords}, text, error)


def regex(pattern, text=None, error=""):
    return Case("regex", pattern, text, error)


def ebnf(source, text=None):
    return Case("parse", {"grammar": source, "syntax": "ebnf"}, text)


def lark(source, text=None):
    return Case("parse", {"grammar": source, "syntax": "lark"}, text)


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


def integers(count):
    properties = {f"p{i}": {"type": "integer"} for i in range(count)}
    return {"type": "object", "properties": properties}


def chain(length, wrap):
    """Definitions that refer to one another, the last of them to nothing."""
    links = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": NULL}}


def ten_of(inner):
    return {"type": "array", "prefixItems": [inner] * 10}


def either(number):
    branches = {f"a{number}": NULL, f"b{number}": {"type": "string"}}
    return {"anyOf": [{"properties": {name: of}} for name, of in branches.items()]}


def ring():
    document: Schema = {"type": "object"}
    document["properties"] = {"a": document}
    return document


DEEP = "CompileLimitError: deep"
LIMIT = "CompileLimitError: over the limit"
MANY = [f"value {i}" for i in range(50_000)]
OPEN, CLOSED = "(" * 100_000, ")" * 100_000
DIGITS = "9" * 5_000
RULES = "\n".join(f'r{i}: "a" r{i + 1}?' for i in range(10_000))

CASES: dict[str, Case] = {
    # Size
    "objects 400 deep": schema(nested(400, in_object), error=DEEP),
    "unions 400 deep": schema(nested(400, in_union), error=DEEP),
    "arrays 150 deep": schema(nested(150, in_array), "[" * 150 + "null" + "]" * 150),
    "objects 100,000 deep, as text": schema(
        '{"properties":{"a":' * 100_000 + "{}" + "}}" * 100_000,
        error="SpecError: can't be read",
    ),
    "a tag 400 deep": Case(
        "structural_tag", {"format": nested(400, lambda inner: {"content": inner})}
    ),
    "20,000 properties": schema(integers(20_000), error=LIMIT),
    "200 objects of 60 properties": schema(
        {"type": "object", "properties": {f"o{i}": integers(60) for i in range(200)}},
        "{}",
    ),
    "an enum of 50,000": schema({"enum": MANY}, error=LIMIT),
    "50,000 choices": Case("choice", MANY, error=LIMIT),
    "a constant of 500 KB": schema({"const": "x" * 500_000}),
    "a schema of 1 MB": schema({**NULL, "description": "x" * 1_000_000}, "null"),
    "a schema of 1 MB, all of it definitions": schema(
        {**NULL, "$defs": {f"d{i}": {"enum": ["x" * 250]} for i in range(3_700)}},
        "null",
    ),
    "a schema of 2 MB": schema({**NULL, "description": "x" * 2_000_000}, error=LIMIT),
    "a regex of 1 MB": regex("|".join(["ab"] * 333_000), "ab"),
    "a grammar of 10,000 rules": lark(f'start: r0\n{RULES}\nr10000: "b"'),
    # Repetition
    "a regex that repeats a billion times": regex("[ab]{1000000000}", error=LIMIT),
    "a regex that repeats 1000 x 1000 x 1000 times": regex(
        "(([ab]c?){1000}d?){1000}(((a{1000}){1000}){1000})", error=LIMIT
    ),
    "a regex that repeats 900 x 900 times": regex("((ab?){0,900}c){0,900}", "aabc"),
    "a bound of 5,000 digits": regex(f"a{{{DIGITS}}}"),
    "a pattern with a bound of 5,000 digits": string(pattern=f"a{{{DIGITS}}}"),
    "a grammar with a bound of 5,000 digits": ebnf(f'root ::= "a"{{0,{DIGITS}}}'),
    "a pattern that repeats 200 x 200 times": string(
        '"aabc"', pattern="^((ab?){0,200}c){0,200}$"
    ),
    "patterns that search, 30 together": string(
        '"' + "a" * 30 + 'b"',
        allOf=[{"pattern": f"a{{{i + 1}}}.*b"} for i in range(30)],
    ),
    "maxLength of 10^30": string('"abc"', maxLength=10**30),
    "maxItems of 10^30": schema({**in_array(NULL), "maxItems": 10**30}, "[null]"),
    "minItems of 100,000": schema({**in_array(NULL), "minItems": 100_000}),
    "lengths of 100,000 beside a pattern": string(
        '"ac"', pattern="[ab]c", maxLength=100_000
    ),
    "a grammar that repeats 1000 x 1000 x 1000 times": ebnf(
        'root ::= ((("a"{0,1000} "b"){0,1000} "c"){0,1000})', "aabc"
    ),
    "100,000 groups inside each other": regex(f"{OPEN}a{CLOSED}"),
    "a pattern of 3,000 groups": string(pattern=f"{OPEN[:3_000]}a{CLOSED[:3_000]}"),
    "a Lark grammar of 100,000 groups": lark(f'start: {OPEN}"a"{CLOSED}'),
    "an EBNF grammar of 100,000 groups": ebnf(f'root ::= {OPEN}"a"{CLOSED}'),
    # Recursion
    "left recursion, EBNF": ebnf('root ::= root "a" | "b"', "baa"),
    "left recursion, Lark": lark('start: start "a" | "b"', "baa"),
    "recursion without an end, EBNF": ebnf('root ::= "a" root'),
    "recursion without an end, Lark": lark('start: "a" start'),
    "recursion through nothing, EBNF": ebnf('root ::= root | "" root | ""'),
    "recursion through nothing, Lark": lark('start: start | x start | x\nx: ""'),
    "a schema of nothing but itself, required": schema(in_object({"$ref": "#"})),
    "$ref in a ring": schema(
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},'
        ' "b": {"$ref": "#/$defs/a"}}}'
    ),
    "not itself": schema({"not": {"$ref": "#"}}),
    "3,000 references in a chain": schema(chain(3_000, dict), "null"),
    "3,000 references through arrays": schema(chain(3_000, in_array)),
    "a mapping that holds itself": schema(ring(), error="SpecError: "),
    "a billion laughs": schema(chain(30, ten_of)),
    "20 unions to multiply out": schema({"allOf": [either(i) for i in range(20)]}),
    # Bytes and numbers
    "invalid UTF-8": schema(b'{"const":"\xff\xfe"}', error="SpecError: is not UTF-8"),
    "NUL in a constant": schema({"const": "a\0b"}, '"a\\u0000b"'),
    "NUL in a regex": regex("a\0b", "a\0b"),
    "NUL in an EBNF grammar": ebnf('root ::= "a\0b"'),
    "NUL in a Lark grammar": lark('start: "a\0b"'),
    "NUL in a pattern": string(pattern="^a\0b$"),
    "a lone surrogate in a constant": schema({"enum": ["\ud800", "b"]}),
    "a lone surrogate in a name": schema(
        {"type": "object", "properties": {"\udfff": NULL}}
    ),
    "a lone surrogate in a pattern": string(pattern="^\ud800$"),
    "a number of 4,000 digits": schema({"minimum": 10**4_000 - 1}),
    "a number of 5,000 digits, as text": schema(f'{{"minimum":{DIGITS}}}'),
    "1e400": schema('{"type":"number","maximum":1e400}', error="SpecError: "),
    "a range of 60 digits": schema(
        {"type": "integer", "minimum": -(10**60), "maximum": 10**60 + 7}, "-12"
    ),
    "multipleOf 1e-300": schema({"type": "number", "multipleOf": 1e-300}),
    "multipleOf a large prime": schema(
        {"type": "integer", "multipleOf": 1_000_000_007}
    ),
    "no grammar at all": ebnf("\x01\x02 ::= \x03"),
}


class Child:
    """A process with one compiler, started when it is first asked and again when it is
    gone."""

    def __init__(self):
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, name):
        process = self._process or self._started()
        process.stdin.write(name.encode() + b"\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], WALL_SECONDS)
        line = process.stdout.readline() if readable else b""
        if not line:
            how = f"said nothing for {WALL_SECONDS} s"
            if readable:
                how = f"ended with code {process.wait()}"
            self.stop()
            pytest.fail(f"the process with the compiler {how}")
        return json.loads(line)

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self):
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
def child():
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
        url = f"http://127.0.0.1:{server.getsockname()[1]}/s.json"
        says = r"references are never fetched.*put that schema under \$defs"
        for reference in (url, f"{url}#/$defs/a", "other.json"):
            with pytest.raises(SpecError, match=says):
                OutputSpec.json_schema({"properties": {"a": {"$ref": reference}}})
        with pytest.raises(TimeoutError):
            server.accept()


def served(compiler, name):
    """What became of a case, and of an ordinary spec after it."""
    report: dict[str, Any] = {"error": ""}
    start = time.perf_counter()
    try:
        report["works"] = works(compiler, CASES[name].make(), CASES[name].text)
    except Exception as error:
        report["error"] = type(error).__name__
        report["what"] = str(getattr(error, "what", error))[:500]
        report["where"] = str(getattr(error, "where", ""))[:200]
        report["hint"] = str(getattr(error, "hint", ""))[:200]
    report["seconds"] = round(time.perf_counter() - start, 3)
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
    if text is not None and not matcher.accept_text(text.encode()):
        return False
    return bool(mask.any()) and (text is None or matcher.complete)


def main():
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
