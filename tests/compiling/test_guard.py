"""Compiles in helper processes: limits that hold, helpers that end, requests that don't wait."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from strange_backend import LARGE, VOCABULARY, strange

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.compiling import guard
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.helper import Helper
from guided_plugin.errors import (
    BusyError,
    CompileLimitError,
    GrammarError,
    PipelineError,
    UnsupportedSpecError,
)
from guided_plugin.ipc import stopped


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_large_schema_comes_back_from_a_helper(make):
    compiler = make()
    grammar = compiler.compile(OutputSpec.json_schema(LARGE))
    assert grammar.backend == "llguidance"
    assert len(compiler._guard.processes()) == 1
    matcher = compiler.backend(grammar.backend).start(grammar, (256,))
    assert matcher.accept_text(b'{"p0":1,"p7":2')


def test_a_small_one_needs_none(make):
    compiler = make()
    assert compiler.compile(OutputSpec.json_schema({"type": "integer"})).backend == "llguidance"
    assert compiler._guard.processes() == []


def test_isolation_can_be_switched_off(make):
    compiler = make(isolate_compiles=False)
    compiler.compile(OutputSpec.json_schema(LARGE))
    assert compiler._guard.processes() == []


def test_time_is_limited_and_what_went_over_is_remembered(make):
    compiler = make(compile_seconds=4.0)
    start = time.monotonic()
    with pytest.raises(CompileLimitError, match="longer than 4 s"):
        compiler.compile(strange("sleep"))
    first = time.monotonic() - start
    start = time.monotonic()
    with pytest.raises(CompileLimitError, match="longer than 4 s"):
        compiler.compile(strange("sleep"))
    assert time.monotonic() - start < 0.5 < first
    assert compiler._guard.processes() == []
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"


@pytest.mark.parametrize("what", ["kill", "memory"])
def test_a_crash_and_a_blown_memory_are_refusals(make, what):
    compiler = make(compile_bytes=256 * 2**20)
    with pytest.raises(CompileLimitError, match=r"0\.25 GiB of memory|crashed its process \(SIGKILL"):
        compiler.compile(strange(what))
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"


@pytest.mark.parametrize(
    ("what", "says"), [("print", "refused in process"), ("raise", "strange.*went wrong")]
)
def test_what_a_helper_says_is_told(make, what, says):
    compiler = make()
    for _ in range(2):
        with pytest.raises(Exception, match=says):
            compiler.compile(strange(what))
    assert len(compiler._guard.processes()) == 1


def test_slow_compiles_hold_no_others_up(make):
    compiler = make(compile_seconds=30.0, compile_processes=3)
    compiler.compile(OutputSpec.json_schema(LARGE))
    slow = [compiler.compile_async(strange(f"sleep {i}")) for i in range(2)]
    time.sleep(0.5)
    start = time.monotonic()
    quick = [compiler.compile_async(OutputSpec.json_schema({"enum": [i]})) for i in range(20)]
    large = compiler.compile_async(OutputSpec.json_schema({**LARGE, "title": "other"}))
    assert all(future.result(20).backend == "llguidance" for future in [*quick, large])
    assert time.monotonic() - start < 20
    assert not any(future.done() for future in slow)
    compiler.close()
    for future in slow:
        with pytest.raises((CompileLimitError, PipelineError)):
            future.result(10)


def test_more_than_there_are_helpers_for_is_said(make):
    compiler = make(compile_seconds=2.0, compile_processes=1)
    first = compiler.compile_async(strange("sleep a"))
    while not compiler._guard.processes():
        time.sleep(0.01)
    with pytest.raises((PipelineError, GrammarError)):
        compiler.compile(strange("sleep b"))
    with pytest.raises(CompileLimitError):
        first.result(60)


@pytest.mark.parametrize(("patience", "one"), [(120.0, True), (0.0, False)])
def test_specs_that_come_together_wait_for_the_helper_that_is_there(make, monkeypatch, patience, one):
    monkeypatch.setattr(guard, "_BURST_SECONDS", patience)
    compiler = make(compile_seconds=60.0)
    specs = [OutputSpec.json_schema({**LARGE, "title": str(number)}) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(compiler.compile, specs))
    assert (len(compiler._guard.processes()) == 1) is one


def test_a_helper_that_ended_while_idle_is_replaced(make):
    compiler = make()
    compiler.compile(OutputSpec.json_schema(LARGE))
    (helper,) = compiler._guard._all
    os.kill(helper.child.pid, signal.SIGKILL)
    # Until all of its threads have ended its socket is open, and a spec would be taken for the cause.
    assert helper.child.exit_code(20.0) == -signal.SIGKILL
    assert compiler.compile(OutputSpec.json_schema({**LARGE, "title": "again"})).backend == "llguidance"
    assert compiler._guard.processes() != [helper.child.pid]


def test_closing_ends_the_helpers(make):
    compiler = make()
    compiler.compile(OutputSpec.json_schema(LARGE))
    (pid,) = compiler._guard.processes()
    assert alive(pid)
    compiler.close()
    assert not alive(pid)
    with pytest.raises(PipelineError, match="closed"):
        compiler.compile(OutputSpec.json_schema({**LARGE, "title": "again"}))


def test_a_compiler_without_users_ends_its_helpers(make):
    compiler = GrammarCompiler(VOCABULARY)
    compiler.compile(OutputSpec.json_schema(LARGE))
    (pid,) = compiler._guard.processes()
    del compiler
    assert not alive(pid)


HOST = """
    import os, signal, sys, threading, time
    from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
    from guided_plugin.compiling.compiler import GrammarCompiler
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(compile_seconds=60))
    large = {"enum": ["x" * 50 + str(i) for i in range(400)]}
    compiler.compile(OutputSpec.json_schema(large))
    print(*compiler._guard.processes(), flush=True)
    spec = OutputSpec.grammar("root ::= sleep" + " # padding" * 200, backend="strange")
    threading.Thread(target=lambda: compiler.compile(spec), daemon=True).start()
    time.sleep(0.5)
"""


def test_a_helper_that_is_ended_from_outside_costs_its_spec_nothing(make, monkeypatch):
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 1e9)
    compiler = make(compile_seconds=60.0)
    compiler.compile(OutputSpec.regex(".*b.{80}", backend="xgrammar"))  # a helper with this backend is there
    (first,) = compiler._guard.processes()
    slow = OutputSpec.regex(".*a.{90}", backend="xgrammar")
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(compiler.compile, slow)
        while not compiler._guard._busy:
            time.sleep(0.001)
        time.sleep(0.2)  # it has the spec now
        assert not made.done()
        os.kill(first, signal.SIGKILL)
        assert made.result().backend == "xgrammar"
    assert compiler.refusal(slow) is None
    assert first not in compiler._guard.processes()


def test_helpers_that_are_stopped_from_outside_cost_their_spec_nothing(make):
    compiler = make(compile_seconds=60.0)
    compiler.start(2, every_backend=True)
    compiler.wait_started()
    first = set(compiler._guard.processes())
    for pid in first:
        os.kill(pid, signal.SIGSTOP)
    spec = OutputSpec.json_schema(LARGE)
    started = time.monotonic()
    assert compiler.compile(spec).backend == "llguidance"
    assert time.monotonic() - started < 40
    assert len(first) == 2
    assert not any(map(alive, first))


def test_a_spec_whose_helpers_are_stopped_again_and_again_is_not_refused(make):
    compiler = make(compile_seconds=600.0)
    stops = strange("stop")
    with pytest.raises(BusyError, match="the last one: it was stopped from outside"):
        compiler.compile(stops)
    assert compiler.refusal(stops) is None
    assert compiler._guard.processes() == []


@pytest.fixture
def deaths(tmp_path, monkeypatch):
    """How many helpers die while they make the backend `strange`: a folder, one file each."""
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    monkeypatch.setenv("STRANGE_DEATHS", str(folder))
    return folder


def test_a_helper_that_dies_while_it_makes_a_backend_is_no_refusal_of_the_spec(make, deaths):
    compiler = make()
    spec = strange("print")
    (deaths / "1").touch()
    with pytest.raises(UnsupportedSpecError, match="refused in process"):  # the second helper's answer
        compiler.compile(spec)
    assert not list(deaths.iterdir())


def test_helpers_that_keep_dying_while_they_make_a_backend_are_told_and_not_remembered(make, deaths):
    compiler = make()
    spec = strange("print")
    for name in "12":
        (deaths / name).touch()
    with pytest.raises(BusyError, match="ended while it made backend 'strange'"):
        compiler.compile(spec)
    assert compiler.refusal(spec) is None
    with pytest.raises(UnsupportedSpecError, match="refused in process"):
        compiler.compile(spec)


def test_a_death_in_the_start_of_a_helper_is_no_refusal_of_the_spec(make, monkeypatch):
    compiler = make()
    left = ["one"]
    greet = Helper.greet

    def killed(helper):
        if left:
            left.pop()
            helper.child.kill()
            helper.child.exit_code(20.0)
        return greet(helper)

    monkeypatch.setattr(Helper, "greet", killed)
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"
    assert not left


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_helpers_end_with_their_host(plugin, end):
    code = textwrap.dedent(HOST) + end
    path = os.pathsep.join([str(plugin), str(Path(__file__).parents[2])])
    start = time.monotonic()
    host = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert host.returncode in (0, -signal.SIGKILL), host.stderr
    pids = [int(pid) for pid in host.stdout.split()]
    assert pids
    while any(map(alive, pids)) and time.monotonic() - start < 60:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_spec_that_compiled_elsewhere_needs_no_helper(byte_vocabulary):
    large = OutputSpec.choice([f"choice {n:04}" for n in range(2000)])
    first, second = (GrammarCompiler(byte_vocabulary, config=GuidedConfig(threads=1)) for _ in range(2))
    assert first.admit_here(large) is None
    prepared = first.admit(large)
    assert first.admit_here(large) == (prepared,)
    assert first.cached(large) is None  # it is for another process to load
    assert not second.is_quick(large)
    second.keep(large, prepared)
    assert second.compile(large).backend == prepared.backend
    assert second.kept(large) is prepared
    assert second._guard.processes() == []
    second.compile(OutputSpec.choice([f"other {n:04}" for n in range(2000)]))
    assert len(second._guard.processes()) == 1
    first.close()
    second.close()


def test_what_a_small_spec_needs_is_nothing(make):
    compiler = make()
    small = OutputSpec.json_schema({"type": "integer"})
    assert compiler.admit_here(small) == (None,)
    assert compiler.admit(small) is None
    assert compiler._guard.processes() == []
