"""What can happen to a grammar worker, and what comes of it: right output or a clear
error, in time."""

import os
import re
import signal
import time

import pytest
from vocabularies import BYTES
from worker_runs import END, LONG, PAREN, Run, faulty, gone, stopped, until

import guided_plugin as gp
from guided_plugin.errors import GuidedError, PipelineError, PluginError, RequestError
from guided_plugin.grammar.table import Phase
from guided_plugin.worker.engine import supervisor as supervisor_module


@pytest.mark.parametrize(
    "phase", ["compile 1", "start 1", "fill 1", "fill 4", "accept 1", "accept 3"]
)
def test_killed_in_any_phase_the_next_worker_takes_over(make, tmp_path, phase):
    pipe = make()
    run = Run(
        pipe,
        bad=faulty(f"{phase} die", tmp_path / "died"),
        good=LONG,
    )
    run.steps(16)
    run.check()
    assert (tmp_path / "died").exists()
    assert pipe.metrics().worker.restarts == 1
    assert run.slowest < 30.0  # found by its death, not by the limit
    assert pipe.phase("bad") is pipe.phase("good") is Phase.DONE
    assert bytes(run.out["bad"][:8]) == b"abcdefgh"


def test_a_stopped_worker_is_replaced_by_its_state_and_no_request_is_blamed(make):
    pipe = make(worker_step_ms=60_000)
    run = Run(pipe, one=LONG)
    run.steps(2)
    for _ in range(2):  # a request that workers die on twice, alone, would be to blame
        pid = stopped(pipe)
        run.steps(3)
        until(lambda pid=pid: gone(pid))
    run.steps(10)
    run.check()
    assert run.slowest < 30.0
    assert pipe.metrics().worker.restarts == 2


@pytest.mark.parametrize("how", ["hang", "freeze"])
def test_a_request_without_progress_fails_and_the_others_go_on(make, how):
    """`hang`: its call is given up. `freeze`: the worker hangs, and is replaced until
    the cause is found."""
    pipe = make(worker_step_ms=2_000)
    run = Run(
        pipe,
        bad=faulty(f"fill 3 {how}"),
        other=LONG,
        waiting=PAREN,
    )
    run.steps(2)
    run.step(["bad", "other"])
    assert run.out["bad"][-1] == END
    assert run.out["other"][-1] != END
    run.steps(12)
    run.check(failed=["bad"])
    reason = {
        "hang": "was not done in 1 s",
        "freeze": "no progress for 2 s while it works",
    }[how]
    assert re.search(reason, str(pipe.request("bad").error))
    assert pipe.phase("bad") is Phase.FAILED
    assert len(pipe.tokens("bad")) == 2
    assert run.out["bad"][-1] == END
    assert pipe.phase("other") is Phase.DONE
    assert pipe.metrics().worker.restarts == (0 if how == "hang" else 2)
    # explained: no step towards refusing all requests
    assert not pipe.runtime.supervisor._deaths
    # The spec is refused when it comes again.
    with pytest.raises(GuidedError, match="is refused for now"):
        pipe.add_request("again", run.specs["bad"])


def test_a_worker_with_a_call_that_does_not_end_is_replaced_when_idle(make):
    pipe = make()
    run = Run(
        pipe,
        bad=faulty("fill 2 hang"),
        good=LONG,
    )
    pid = pipe.runtime.supervisor.worker_pid
    run.steps(16)
    run.check(failed=["bad"])
    for name in run.specs:
        pipe.remove_request(name)
    until(lambda: gone(pid))
    until(lambda: pipe.metrics().worker.restarts == 1)
    after = Run(pipe, next=LONG)
    after.steps(16)
    after.check()
    assert not pipe.runtime.supervisor._deaths


@pytest.mark.parametrize("phase", ["fill 3", "accept 3", "start 1"])
def test_a_request_that_kills_twice_is_not_tried_a_third_time(make, phase):
    pipe = make()
    run = Run(
        pipe,
        bad=faulty(f"{phase} die"),
        good=LONG,
    )
    run.steps(16)
    run.check(failed=["bad"])
    assert "ended the grammar worker twice" in str(pipe.request("bad").error)
    # The first time it is in a batch: it counts only that a worker dies while it works
    # on one request alone.
    assert pipe.metrics().worker.restarts == (2 if phase == "start 1" else 3)
    assert not pipe.runtime.supervisor._deaths
    assert pipe.phase("good") is Phase.DONE
    assert run.slowest < 30.0


def test_a_spec_whose_compile_kills_twice_is_refused(make):
    pipe = make()
    run = Run(pipe, good=LONG)
    with pytest.raises(
        RequestError, match="compiling this spec ended the grammar worker twice"
    ):
        pipe.add_request("bad", faulty("compile 1 die"))
    run.steps(16)
    run.check()
    pipe.add_request("next", PAREN)


def test_three_deaths_in_a_minute_and_guided_requests_are_refused_for_a_while(
    make, monkeypatch
):
    monkeypatch.setattr(
        supervisor_module,
        "WINDOW_SECONDS",
        6.0,
    )
    pipe = make()
    run = Run(pipe, one=LONG)
    run.step()
    watched = pipe.runtime.supervisor
    for _ in range(3):
        until(lambda: watched.worker_pid is not None)
        pid = watched.worker_pid
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: watched.worker_pid != pid)
    until(lambda: pipe.runtime.refusing)
    with pytest.raises(
        RequestError,
        match=r"refused: .* 3 times within 6 s.*SIGKILL.*unguided requests go on",
    ):
        pipe.add_request("two", LONG)
    with pytest.raises(RequestError, match="refused"):
        pipe.prepare(PAREN).result(1)
    run.step()  # closed at once, and the unguided row is untouched
    assert run.out["one"][-1] == END
    assert run.slowest < 4.0
    run.check(failed=["one"])
    time.sleep(6.0)
    pipe.add_request("two", PAREN)
    again = Run(pipe, three=LONG)
    again.steps(3)
    again.check()


def failing(monkeypatch, owner, name, times):
    """Lets a method raise what nobody expects, so many times; the list of when it
    did."""
    raised = []
    method = getattr(owner, name)

    def fail(*args, **kwargs):
        if len(raised) < times:
            raised.append(time.monotonic())
            raise ZeroDivisionError("injected")
        return method(*args, **kwargs)

    monkeypatch.setattr(
        owner,
        name,
        fail,
    )
    return raised


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("_pulse", "stopped"),
        ("_pulse", "hangs"),
        ("", "_poll"),
        ("", "_end_worker"),
        ("_session", "blame"),
        ("_session", "begin"),
        ("_session", "end"),
    ],
)
def test_an_unexpected_exception_in_the_supervisor_replaces_the_worker(
    make, monkeypatch, part, name
):
    pipe = make()
    run = Run(
        pipe,
        one=LONG,
        two=PAREN,
    )
    run.steps(3)
    supervisor = pipe.runtime.supervisor
    pid = supervisor.worker_pid
    raised = failing(
        monkeypatch, getattr(supervisor, part) if part else supervisor, name, 1
    )
    os.kill(pid, signal.SIGKILL)
    until(lambda: raised)
    run.steps(13)
    run.check()
    assert run.slowest < 30.0
    assert supervisor.thread.is_alive()
    assert supervisor.worker_pid != pid
    pipe.add_request("three", PAREN)


def test_a_supervisor_that_keeps_failing_refuses_requests_and_recovers(
    make, monkeypatch
):
    monkeypatch.setattr(
        supervisor_module,
        "WINDOW_SECONDS",
        3.0,
    )
    pipe = make()
    run = Run(pipe, one=LONG)
    run.step()
    supervisor = pipe.runtime.supervisor
    with monkeypatch.context() as patch:
        failing(
            patch,
            pipe.runtime.steps,
            "harvest",
            10**9,
        )
        supervisor.wake()
        until(lambda: pipe.runtime.refusing)
        with pytest.raises(
            RequestError, match=r"refused: .*its supervisor failed: ZeroDivisionError"
        ):
            pipe.add_request("two", PAREN)
        run.step()  # its row is closed at once
        assert run.out["one"][-1] == END
        assert run.slowest < 30.0
    run.check(failed=["one"])
    assert supervisor.thread.is_alive()
    until(lambda: not pipe.runtime.refusal())
    again = Run(
        pipe,
        two=PAREN,
        three=LONG,
    )
    again.steps(16)
    again.check()


def test_what_only_this_process_has_is_refused_with_a_way_out(make):
    class Local:
        @gp.hookimpl
        def register_backends(self, register):
            register("local", None)

    pipe = make()
    pipe.compiler.plugins.register(Local(), "local")
    with pytest.raises(
        PluginError, match=r"can't load local.*entry-point group.*inline"
    ):
        pipe.add_request("one", LONG)


def test_no_room_for_the_region_is_an_error_when_it_is_made(monkeypatch):
    def full(fd, offset, size):
        raise OSError(28, "No space left on device")

    compiler = gp.GrammarCompiler(BYTES)
    monkeypatch.setattr(
        os,
        "posix_fallocate",
        full,
    )
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        PipelineError, match=r"No space left.*more memory.*mode='inline'"
    ):
        gp.StepPipeline(
            compiler,
            max_slots=2,
            mode="process",
        )
    assert len(os.listdir("/proc/self/fd")) == before
