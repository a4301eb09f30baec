"""Memos are bounded in bytes, whatever clients send."""

import os
import subprocess
import sys

import pytest

from guided_plugin import OutputSpec
from guided_plugin.config import BOUNDS
from guided_plugin.spec import identity_of
from guided_plugin.spec.memo import remembered, texts_bytes

GROWTH = """
import sys
from guided_plugin import OutputSpec
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError
from guided_plugin.grammar.base import Grammar, Prepared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.languages import searched, whole
from guided_plugin.step import Admission
from guided_plugin.worker.engine.admissions import Admissions
from guided_plugin.worker.messages import Verdict
import resource

vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
compiler = GrammarCompiler(vocabulary, config=GuidedConfig(cache_bytes=16 << 20))
admissions = Admissions(compiler)

def visit(number):
    text = f"{number}" + "x" * (1 << 20)
    spec = OutputSpec.regex(text)
    error = CompileLimitError("too large", where="regex", hint="make it smaller")
    compiler.keep(spec, Prepared(spec, "fake", text))
    assert compiler.kept(spec) is not None
    verdict, question = admissions.open(spec)
    admissions.judge(Verdict(question.key, Admission("fake")))
    assert admissions.lookup(spec).result().backend == "fake"
    compiler.quarantine(spec, error)
    assert compiler.refusal(spec) is not None
    compiler._cache.put(spec, Grammar(spec, "fake", None, 1 << 20, 0.1), 1 << 20)

for number in range(20):
    visit(number)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(20, 20 + int(sys.argv[1])):
    visit(number)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


SPECS = int(os.environ.get("GUIDED_SPECS", "250"))


def test_what_is_remembered_of_large_specs_stays_small():
    """250 distinct ones of 1 MiB, or as many as asked for. A memo that kept them whole
    would take 250 MiB."""
    command = [sys.executable, "-c", GROWTH, str(SPECS)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300 + SPECS / 4
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 << 10  # KiB


def test_what_raises_is_not_remembered():
    @remembered(texts_bytes)
    def refuse(text):
        raise ValueError(text)

    for _ in range(2):
        with pytest.raises(ValueError, match="one"):
            refuse("one")


def test_an_identity_is_that_of_the_language():
    spec = OutputSpec.regex("a+")
    same = [
        OutputSpec.regex("a+", **options)
        for options in ({"stop_token_ids": [1]}, {"start_after": "b"})
    ]
    assert {identity_of(one) for one in same} == {identity_of(spec)}
    others = [
        OutputSpec.regex("a+b"),
        OutputSpec.regex("a+", backend="xgrammar"),
        OutputSpec.grammar("a+"),
        OutputSpec.grammar("a+", "lark"),
        OutputSpec.choice(["a+"]),
        OutputSpec.json_schema({}),
        OutputSpec.json_schema({}, strict=False),
        OutputSpec.json_schema({}, whitespace="flexible"),
        *(OutputSpec.json_schema({}, **{name: 9}) for name in BOUNDS),
    ]
    assert len({identity_of(one) for one in [spec, *others]}) == len(others) + 1
