"""The spare worker: it takes over in time, is replaced, and ends with its pipeline."""

import gc
import os
import pathlib
import signal
import threading
import time

import pytest
from vocabularies import BYTES
from worker_runs import END, LONG, PAREN, Run, gone, stopped, until

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.grammar.table import Phase
from guided_plugin.worker.engine import spare as spare_module
from guided_plugin.worker.engine import start
from guided_plugin.worker.engine import supervisor as supervisor_module


@pytest.fixture
def soon(monkeypatch):
    """Spares start as soon as a worker is warm."""
    monkeypatch.setattr(supervisor_module, "SPARE_SECONDS", 0.0)


def spare_of(pipe):
    """The process id of the pipeline's spare worker, once there is one."""

    def pid():
        spare = pipe.runtime.supervisor._spare
        return None if spare is None else spare.pid

    until(lambda: pid() is not None, 90.0)  # it gives way to all others, and this machine may be busy
    return pid()


def test_the_worker_and_its_fork_server_stop_and_the_spare_takes_over_in_time(make, soon):
    pipe = make(worker_step_ms=60_000)
    run = Run(pipe, one=LONG, waiting=PAREN)
    run.steps(2)
    spare = spare_of(pipe)
    server = pipe.runtime.supervisor._server
    os.kill(server.pid, signal.SIGSTOP)
    stopped(pipe)
    run.steps(6)
    run.check()
    assert run.slowest < 30.0
    assert pipe.runtime.supervisor.worker_pid == spare
    assert len(pipe.runtime.supervisor._deaths) == 1
    assert spare_of(pipe) != spare  # in a new server: the stopped one is ended
    assert not server.alive


def server_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return int(stat.read().rpartition(") ")[2].split()[1])


def test_the_spare_takes_over_and_gets_a_spare_of_its_own(make, soon):
    pipe = make(worker_step_ms=60_000)
    run = Run(pipe, one=LONG, waiting=PAREN)
    run.steps(2)
    workers, servers = set(), set()
    for _ in range(2):  # the third death would have requests refused
        spare, worker = spare_of(pipe), pipe.runtime.supervisor.worker_pid
        assert server_of(spare) != server_of(worker)
        workers |= {worker}
        servers |= {server_of(spare), server_of(worker)}
        os.kill(worker, signal.SIGKILL)
        until(lambda worker=worker: gone(worker))
        run.steps(3)
        assert pipe.runtime.supervisor.worker_pid == spare
    run.steps(8)
    run.check()
    assert len(workers | {spare}) == 3
    assert len(servers) == 2
    assert "guided-worker" in pathlib.Path(f"/proc/{spare}/comm").read_text(encoding="ascii")
    pipe.close()
    until(lambda: gone(spare))


def test_a_spare_shows_itself_in_the_list_of_processes_and_ends_with_its_pipeline(make, soon):
    pipe = make()
    spare = spare_of(pipe)
    assert "guided-spare" in pathlib.Path(f"/proc/{spare}/comm").read_text(encoding="ascii")
    pipe.close()
    until(lambda: gone(spare))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_spare_that_dies_or_stops_is_not_used(make, soon, number):
    pipe = make(worker_step_ms=60_000)
    run = Run(pipe, one=LONG, waiting=PAREN)
    run.steps(2)
    spare, worker = spare_of(pipe), pipe.runtime.supervisor.worker_pid
    os.kill(spare, number)
    if number == signal.SIGKILL:
        until(lambda: spare_of(pipe) != spare)
        assert pipe.runtime.supervisor.worker_pid == worker
        assert len(pipe.runtime.supervisor._deaths) == 0
    os.kill(worker, signal.SIGKILL)
    until(lambda: gone(worker))
    run.steps(13)
    run.check()
    assert pipe.runtime.supervisor.worker_pid != spare
    until(lambda: gone(spare))


def test_a_pipeline_may_be_collected_in_the_thread_of_its_spare(fork_server, soon, monkeypatch):
    """Which can't wait for its own end."""
    forgotten, collected = threading.Event(), threading.Event()
    wait = spare_module.Spare._wait

    def collect(self, channel):
        forgotten.wait(60)
        gc.collect()
        collected.set()
        return wait(self, channel)

    monkeypatch.setattr(spare_module.Spare, "_wait", collect)
    pipe = gp.StepPipeline(gp.GrammarCompiler(BYTES), max_slots=1, mode="process")
    supervisor = pipe.runtime.supervisor
    pipe.itself = pipe
    until(lambda: supervisor._spare is not None, 90.0)
    worker = supervisor.worker_pid
    del pipe
    forgotten.set()
    assert collected.wait(60)
    until(lambda: not supervisor.thread.is_alive())
    until(lambda: gone(worker))


def test_without_a_spare_the_next_worker_is_forked(make, soon):
    pipe = make(worker_step_ms=60_000, worker_spare=False)
    run = Run(pipe, one=LONG)
    run.steps(2)
    supervisor = pipe.runtime.supervisor
    worker = supervisor.worker_pid
    os.kill(worker, signal.SIGKILL)
    until(lambda: gone(worker))
    run.steps(13)
    run.check()
    assert supervisor._spare is None
    assert supervisor.worker_pid != worker


def test_without_a_spare_worker_a_second_fork_server_takes_over(make, soon):
    pipe = make(worker_step_ms=60_000, worker_spare=False)
    run = Run(pipe, one=LONG, waiting=PAREN)
    run.steps(2)
    supervisor = pipe.runtime.supervisor
    until(lambda: supervisor._second is not None, 90.0)
    second, worker = supervisor._second, supervisor.worker_pid
    assert second is not supervisor._server
    os.kill(supervisor._server.pid, signal.SIGKILL)
    until(lambda: gone(worker))
    run.steps(6)
    run.check()
    assert supervisor._server is second
    assert supervisor._spare is None
    until(lambda: supervisor._second not in (None, second), 90.0)


def test_a_spare_that_cannot_be_started_is_told_once_a_minute(make, soon, monkeypatch, caplog):
    real = start.ForkServer.fork

    def fork(self, *arguments):
        if threading.current_thread().name == "guided-spare":
            raise PipelineError("no more processes", where="fork server")
        return real(self, *arguments)

    monkeypatch.setattr(start.ForkServer, "fork", fork)
    pipe = make()
    supervisor = pipe.runtime.supervisor
    until(lambda: 30 < supervisor._spare_at - time.monotonic() < 61, 90.0)
    assert supervisor._spare is None
    run = Run(pipe, one=LONG)
    run.steps(14)
    run.check()
    assert "there is no spare grammar worker: fork server: no more processes" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_spare_takes_the_place_of_a_fork_server_that_dies_or_stops(make, soon, number):
    pipe = make(worker_step_ms=60_000)
    run = Run(pipe, one=LONG, waiting=PAREN)
    run.steps(2)
    supervisor = pipe.runtime.supervisor
    spare, worker, server = spare_of(pipe), supervisor.worker_pid, supervisor._server
    os.kill(server.pid, number)
    if number == signal.SIGSTOP:
        os.kill(worker, signal.SIGKILL)
    until(lambda: gone(worker))
    run.steps(6)
    run.check()
    assert supervisor.worker_pid == spare
    assert len(supervisor._deaths) == 1
    assert spare_of(pipe) != spare


def test_the_fork_server_can_die_and_its_spare_too(make, soon):
    pipe = make(worker_step_ms=2_000)
    run = Run(pipe, one=LONG, waiting=PAREN)
    run.steps(2)
    supervisor = pipe.runtime.supervisor
    worker = supervisor.worker_pid
    os.kill(server_of(spare_of(pipe)), signal.SIGSTOP)
    os.kill(spare_of(pipe), signal.SIGKILL)
    os.kill(supervisor._server.pid, signal.SIGKILL)
    until(lambda: gone(worker))
    # The imports of the next one take seconds: no step is kept waiting for so long.
    run.step(["one"])
    assert run.out["one"][-1] == END
    assert 1.9 < run.slowest < 20.0
    assert pipe.phase("waiting") is Phase.ACTIVE
    run.slowest = 0.0
    for _ in range(3):
        run.step(["waiting"])
    run.check(failed=["one"])
    assert "there was no grammar worker for 2 s" in str(pipe.request("one").error)
