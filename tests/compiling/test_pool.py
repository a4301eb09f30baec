"""Compiles in helper processes: limits that hold, helpers that end, requests that don't
wait."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from strange_backend import LARGE, strange
from worker_runs import gone, until

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.compiling import compiler as compiler_module
from guided_plugin.compiling import pool as pool_module
from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler, shared_compiler
from guided_plugin.compiling.pool import Compile, Helper
from guided_plugin.errors import (
    BusyError,
    CompileLimitError,
    GuidedError,
    PipelineError,
    UnsupportedSpecError,
)
from guided_plugin.ipc.template import Template

background = Background()


def compiling(compiler, spec, **options):
    """A compile in a thread of its own, as a future."""
    return background.submit(lambda: compiler.compile(spec, **options))


def ended(*pids):
    """Wait until processes have ended."""
    until(lambda: all(map(gone, pids)), 60.0)


@pytest.fixture
def busy_machine(monkeypatch):
    """A compile may get as little of a processor as it does next to other tests."""
    monkeypatch.setattr(pool_module, "_LEAST_SHARE", 100)


def test_a_large_schema_comes_back_from_a_helper(make):
    compiler = make()
    grammar = compiler.compile(OutputSpec.json_schema(LARGE))
    assert grammar.backend == "llguidance"
    assert len(compiler._pool.processes()) == 1
    matcher = compiler.backend(grammar.backend).start(grammar, (256,))
    assert matcher.accept_text(b'{"p0":1,"p7":2')


@pytest.mark.parametrize(
    ("options", "schema"),
    [({}, {"type": "integer"}), ({"isolate_compiles": False}, LARGE)],
)
def test_what_compiles_in_place_needs_no_helper(make, options, schema):
    compiler = make(**options)
    spec = OutputSpec.json_schema(schema)
    made = compiler.admit(spec, here=True)  # which another process loads
    assert make().chooser.load(made).spec == made.spec
    assert compiler.compile(spec).backend == "llguidance"
    assert compiler._pool.processes() == []


def test_a_small_schema_gets_a_helper_where_that_is_asked_for(make):
    compiler = make()
    compiler.admit(OutputSpec.json_schema({"type": "integer"}))
    assert len(compiler._pool.processes()) == 1


def test_processor_time_is_limited_and_what_went_over_is_remembered_for_a_minute(
    make, busy_machine, monkeypatch
):
    compiler = make(compile_seconds=1.0)
    for _ in range(2):
        with pytest.raises(CompileLimitError, match="more than 1 s of processor time"):
            compiler.compile(strange("spin"))
        assert compiler.refusal(strange("spin")) is not None
    assert compiler._pool.processes() == []
    later = time.monotonic() + 61
    with monkeypatch.context() as patch:
        patch.setattr(compiler_module.time, "monotonic", later.__float__)
        assert compiler.refusal(strange("spin")) is None
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"


def test_the_kernel_ends_a_compile_whose_pool_does_not(make):
    """The worker that asked for it may have ended, while native code keeps the helper
    from noticing."""
    compiler = make(own_template=True, compile_seconds=1.0)
    helper = Helper(compiler.template, compiler.config)
    helper._channel.send(Compile("strange", strange("spin")))
    assert helper.process.exit_code(60.0) == -signal.SIGXCPU
    helper.process.stop()


def test_a_compile_that_gets_no_processor_says_nothing_of_its_spec(make):
    compiler = make(compile_seconds=0.5)
    with pytest.raises(
        BusyError, match=r"a compile got 0(\.\d+)? s of processor time in 2"
    ):
        compiler.compile(strange("sleep"))
    assert compiler.refusal(strange("sleep")) is None
    assert compiler._pool.processes() == []


def test_one_deadline_holds_in_the_queue_and_for_those_who_wait_for_the_same_spec(make):
    compiler = make(compile_seconds=30.0, compile_processes=1)
    running = compiling(compiler, strange("sleep"))
    until(compiler._pool.processes, 60.0)
    for spec in (OutputSpec.json_schema(LARGE), strange("sleep")):
        start = time.monotonic()
        with pytest.raises(BusyError, match="the request's time is up"):
            compiler.admit(spec, deadline=start + 0.3)
        assert time.monotonic() - start < 2.0
        assert compiler.refusal(spec) is None
    assert not running.done()


@pytest.mark.parametrize(
    ("what", "says", "left"),
    [
        ("kill", r"crashed its compile process \(SIGKILL", 0),
        ("memory", r"0\.25 GiB of memory", 0),
        ("print", "refused in process", 1),
        ("raise", "strange.*went wrong", 1),
    ],
)
def test_a_crash_a_blown_memory_and_an_error_are_refusals(make, what, says, left):
    compiler = make(own_template=what == "memory", compile_bytes=256 * 2**20)
    for _ in range(2):
        with pytest.raises(GuidedError, match=says):
            compiler.compile(strange(what))
        assert compiler.refusal(strange(what)) is not None
    assert len(compiler._pool.processes()) == left
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"


def test_slow_specs_leave_quick_ones_a_helper_and_start_again(make):
    compiler = make(compile_seconds=60.0, compile_processes=2)
    slow = [compiling(compiler, strange(f"spin {i}")) for i in range(3)]
    until(lambda: len(compiler._pool.processes()) > 1, 60.0)
    for number in range(2):
        assert compiler.compile(OutputSpec.json_schema({**LARGE, "title": str(number)}))
    small = [
        compiling(compiler, OutputSpec.json_schema({"enum": [i]})) for i in range(9)
    ]
    assert all(future.result(20).backend == "llguidance" for future in small)
    assert not any(future.done() for future in slow)
    assert len(compiler._pool.processes()) <= 2
    assert [turn.slow for turn in compiler._pool._running] == [True]
    compiler.close()
    for future in slow:
        with pytest.raises((CompileLimitError, PipelineError)):
            future.result(10)


def test_nothing_is_started_before_a_spec_needs_it(make):
    compiler = make(own_template=True)
    compiler.warm_up()
    compiler.compile(OutputSpec.json_schema({"type": "integer"}))
    assert compiler.template.pid is None
    compiler.compile(OutputSpec.json_schema(LARGE))
    assert not gone(compiler.template.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("who", ["helper", "template"])
def test_what_is_ended_or_stopped_while_idle_is_replaced_and_costs_a_spec_nothing(
    make, who, number
):
    compiler = make(compile_seconds=60.0)
    compiler.compile(OutputSpec.json_schema(LARGE))
    (helper,) = compiler._pool.processes()
    pid = helper if who == "helper" else compiler.template.pid
    os.kill(pid, number)
    if who == "template":
        # it may have ended with its template
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)
    if who == "template" or number == signal.SIGKILL:
        # Until all of its threads have ended its socket is open, and a spec would be
        # taken for the cause.
        ended(helper)
    spec = OutputSpec.json_schema({**LARGE, "title": "again"})
    assert compiler.compile(spec).backend == "llguidance"
    ended(pid)


def test_closing_ends_the_helpers(make):
    compiler = make()
    compiler.compile(OutputSpec.json_schema(LARGE))
    (pid,) = compiler._pool.processes()
    compiler.close()
    ended(pid)
    with pytest.raises(PipelineError, match="closed"):
        compiler.compile(OutputSpec.json_schema({**LARGE, "title": "again"}))


HOST = """
    import os, signal, sys, threading, time
    from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
    from guided_plugin.compiling.compiler import GrammarCompiler
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(compile_seconds=60))
    large = {"enum": ["x" * 50 + str(i) for i in range(400)]}
    compiler.compile(OutputSpec.json_schema(large))
    print(compiler.template.pid, *compiler._pool.processes(), flush=True)
    spec = OutputSpec.grammar("root ::= spin" + " # padding" * 200, backend="strange")
    threading.Thread(target=lambda: compiler.compile(spec), daemon=True).start()
    time.sleep(0.5)
"""


def test_a_helper_that_is_ended_from_outside_at_work_costs_its_spec_nothing(make):
    compiler = make(compile_seconds=60.0)
    spec = strange("spin")
    made = compiling(compiler, spec)
    until(lambda: any(one.seconds_used() > 0.1 for one in list(compiler._pool._all)))
    (first,) = compiler._pool.processes()
    os.kill(first, signal.SIGKILL)
    until(lambda: set(compiler._pool.processes()) - {first}, 60.0)
    assert not made.done()
    assert compiler.refusal(spec) is None


def test_a_spec_whose_helpers_are_stopped_again_and_again_is_not_refused(make):
    compiler = make(compile_seconds=600.0)
    stops = strange("stop")
    with pytest.raises(BusyError, match="the last one: it was stopped from outside"):
        compiler.compile(stops)
    assert compiler.refusal(stops) is None
    assert compiler._pool.processes() == []


@pytest.mark.parametrize("deaths", [1, 5])
def test_helpers_that_die_while_they_make_a_backend_are_no_refusal_of_the_spec(
    make, tmp_path, monkeypatch, deaths
):
    """One is replaced; after five the spec is told, and may come again."""
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    for number in range(deaths):
        (folder / str(number)).touch()
    monkeypatch.setenv("STRANGE_DEATHS", str(folder))
    compiler = make(own_template=True)
    spec = strange("print")
    if deaths == 5:
        with pytest.raises(BusyError, match="ended while it made backend 'strange'"):
            compiler.compile(spec)
        assert compiler.refusal(spec) is None
    # the next helper's answer
    with pytest.raises(UnsupportedSpecError, match="refused in process"):
        compiler.compile(spec)
    assert not list(folder.iterdir())


def test_a_template_that_dies_while_it_starts_is_no_refusal_of_the_spec(
    make, monkeypatch
):
    compiler = make(own_template=True)
    left = ["one"]
    running = Template._running

    def killed(template):
        process = running(template)
        if left:
            left.pop()
            process.child.kill()
        return process

    monkeypatch.setattr(Template, "_running", killed)
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"
    assert not left


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_helpers_end_with_their_host(plugin, end):
    code = textwrap.dedent(HOST) + end
    path = os.pathsep.join([str(plugin), str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", code]
    variables = {**os.environ, "PYTHONPATH": path}
    host = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=60
    )
    assert host.returncode in (0, -signal.SIGKILL), host.stderr
    pids = [int(pid) for pid in host.stdout.split()]
    assert pids
    ended(*pids)


def test_a_process_that_is_forked_in_a_compile_makes_its_own(
    byte_vocabulary, monkeypatch
):
    compiler = shared_compiler(byte_vocabulary)
    begun = threading.Event()
    made = compiler._made
    small = OutputSpec.choice(["a"])
    large = OutputSpec.json_schema(LARGE)
    monkeypatch.setattr(
        compiler, "_made", lambda *args: begun.set() or time.sleep(0.5) or made(*args)
    )
    running = compiling(compiler, small)
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(15)
        with contextlib.suppress(Exception):
            compiling(compiler, small).result()
            with pytest.raises(PipelineError, match="before a fork"):
                compiler.compile(large)
            shared_compiler(byte_vocabulary).compile(large)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    running.result()


def test_a_thread_waits_for_its_next_call():
    calls = Background()
    first = calls.submit(threading.get_ident).result()
    until(lambda: calls._idle)
    assert calls.submit(threading.get_ident).result() == first


def test_a_spec_that_compiled_elsewhere_needs_no_helper(byte_vocabulary):
    large = OutputSpec.choice([f"choice {n:04}" for n in range(2000)])
    first, second = (
        GrammarCompiler(byte_vocabulary, config=GuidedConfig(threads=1))
        for _ in range(2)
    )
    assert not first.why_quick(large)
    prepared = first.admit(large)
    assert first.why_quick(large)
    assert first.admit(large) is prepared
    assert first.cached(large) is None  # it is for another process to load
    assert not second.why_quick(large)
    second.keep(large, prepared)
    assert second.compile(large).backend == prepared.backend
    assert second.kept(large) is prepared
    assert second._pool.processes() == []
    second.compile(OutputSpec.choice([f"other {n:04}" for n in range(2000)]))
    assert len(second._pool.processes()) == 1
    first.close()
    second.close()
