"""The fork server that pipelines share: any method at any time, and which user closes which server."""

import os
import signal
import threading
import time

import pytest

from guided_plugin.errors import PipelineError
from guided_plugin.ipc import stopped
from guided_plugin.worker.engine import start
from guided_plugin.worker.layout import Region, Shape


@pytest.fixture
def no_loans(monkeypatch):
    """The module as it is before any pipeline exists."""
    monkeypatch.setattr(start, "_running", [])
    monkeypatch.setattr(start, "_loans", {})


@pytest.fixture
def server():
    server = start.ForkServer()
    yield server
    server.close()


@pytest.fixture
def region_fd():
    region = Region.create(Shape(1, 1))
    yield region.fd
    region.close()


class Inside(threading.Thread):
    """Calls a method of the server in a thread, which is inside of it when this returns."""

    def __init__(self, server, method, *args):
        super().__init__()
        self.method, self.args = getattr(server, method), args
        self.outcome = None
        self.start()
        until(server._lock.locked)

    def run(self):
        try:
            self.outcome = self.method(*self.args)
        except BaseException as error:
            self.outcome = error

    def result(self):
        self.join(20)
        assert not self.is_alive(), "still inside"
        return self.outcome


def until(what):
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.001)


def end(server):
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.alive)


def test_a_thread_inside_exit_code_survives_the_close(server):
    with server._lock:  # its next look at the socket comes after the close
        asking = Inside(server, "exit_code", 1, 60.0)
        closing = Inside(server, "close")
        until(lambda: not server.alive or server._control.fileno() < 0)
    assert asking.result() is None
    assert closing.result() is None


def test_a_thread_inside_fork_learns_of_the_close(server, region_fd):
    forking = Inside(server, "fork", region_fd, 60.0)
    server.close()
    error = forking.result()
    assert isinstance(error, PipelineError), error
    assert "its fork server was closed" in str(error)


def test_threads_that_wait_for_their_turn_leave_too(server, region_fd):
    inside = Inside(server, "fork", region_fd, 60.0)
    waiting = [Inside(server, "fork", region_fd, 60.0), Inside(server, "exit_code", 1, 60.0)]
    server.close()
    assert isinstance(inside.result(), PipelineError)
    assert isinstance(waiting[0].result(), PipelineError)
    assert waiting[1].result() is None


def test_a_closed_server_answers(server, region_fd):
    server.close()
    server.close()
    assert not server.alive
    assert server.exit_code(1) is None
    with pytest.raises(PipelineError, match=r"its fork server was closed.*mode='inline'"):
        server.fork(region_fd, 1.0)


def test_exit_code_waits_no_longer_than_told_for_another_thread(server):
    with server._lock:  # as a thread inside `fork` has it
        asking = threading.Thread(target=server.exit_code, args=(1, 0.2))
        asking.start()
        asking.join(10)
        waits = asking.is_alive()
    asking.join()
    assert not waits


def test_a_loan_belongs_to_its_own_server(no_loans):
    old = start.borrow_server()
    assert start.borrow_server() is old
    end(old)
    start.return_server(old)
    new = start.borrow_server()
    assert new is not old
    # The second user of the old server still has it, and may ask it.
    assert old._control.fileno() >= 0
    assert old.exit_code(1) is None
    assert start.borrow_server() is new
    start.return_server(new)
    start.return_server(old)
    assert old._control.fileno() == -1
    assert new.alive
    assert start.borrow_server() is new
    start.return_server(new)
    assert new.alive
    start.return_server(new)
    assert not new.alive
    assert start._loans == {}
    assert start._running == []


def test_a_server_that_users_replace_before_they_return_it_is_closed_by_them(no_loans):
    old = start.borrow_server()
    end(old)
    new = start.borrow_server()
    assert new is not old
    start.return_server(new)
    assert not new.alive
    assert old._control.fileno() >= 0
    start.return_server(old)
    assert old._control.fileno() == -1


def test_a_forked_child_leaves_all_servers_to_its_parent(no_loans):
    old = start.borrow_server()
    end(old)
    new = start.borrow_server()
    child = os.fork()
    if child == 0:
        told = not old.alive and not new.alive and new.exit_code(1, 0.1) is None
        start.return_server(new)
        start.return_server(old)
        os._exit(0 if told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert new.alive
    start.return_server(new)
    start.return_server(old)


def test_a_fork_server_and_its_workers_may_use_more_processors_than_the_thread_that_starts_it():
    """vLLM's CPU build binds its worker's thread to one processor, and never lets it rest."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two processors")
    os.sched_setaffinity(0, {min(before)})
    try:
        server = start.ForkServer()
        try:
            assert os.sched_getaffinity(server.pid) == before
        finally:
            server.close()
    finally:
        os.sched_setaffinity(0, before)


def forked(server, region_fd):
    """A worker of the server, ended at once."""
    worker = server.fork(region_fd, 60.0)
    worker.kill()
    worker.sock.close()
    worker.release()
    return worker


def test_a_second_server_beside_the_first(no_loans, region_fd):
    first = start.borrow_server()
    assert start.borrow_server() is first
    second = start.borrow_server(apart_from=first)
    assert second is not first
    assert start.borrow_server(apart_from=first) is second
    assert start.borrow_server(apart_from=second) is first
    end(first)
    assert start.borrow_server() is second  # which has done its imports
    assert forked(second, region_fd).pid > 0
    third = start.borrow_server(apart_from=second)
    assert third not in (first, second)
    start.return_server(third)
    assert third.alive  # kept for the next one, while any is in use
    for _ in range(3):
        start.return_server(first)
    for _ in range(3):
        start.return_server(second)
    assert not second.alive
    assert not third.alive
    assert start._running == []


@pytest.mark.parametrize("has_forked", [True, False])
def test_a_server_that_is_stopped_is_ended(server, region_fd, has_forked, monkeypatch):
    monkeypatch.setattr(start, "ANSWER_SECONDS", 60.0)
    if has_forked:
        forked(server, region_fd)
    os.kill(server.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(PipelineError, match="was stopped from outside"):
        server.fork(region_fd, 60.0)
    assert time.monotonic() - began < 20
    assert server.hung
    assert not server.alive


def test_a_server_that_stops_answering_is_ended(server, region_fd, monkeypatch):
    forked(server, region_fd)
    os.kill(server.pid, signal.SIGSTOP)
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 1e9)
    monkeypatch.setattr(start, "ANSWER_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(PipelineError, match=r"did not start within 0\.3 s"):
        server.fork(region_fd, 60.0)
    assert time.monotonic() - began < 20
    assert server.hung
    assert not server.alive


def test_a_server_that_still_imports_may_take_its_time(server, region_fd, monkeypatch):
    monkeypatch.setattr(start, "ANSWER_SECONDS", 0.01)
    assert forked(server, region_fd).pid > 0
    assert not server.hung
