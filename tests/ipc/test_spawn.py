"""Processes of this package start with the host's modules and end with the host. Those
count as stopped that the kernel says are, for long enough."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from worker_runs import gone

from guided_plugin.ipc import spawn
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import Child, StopWatch

MODULE = """
import os, sys, time
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import die_with

def main(sock, parent, *arguments):
    die_with(parent)
    channel = Channel(sock)
    print("not for the host's output")
    channel.send((parent, arguments, os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("ADDED")))
    channel.drain()
    what = channel.wait()[0]
    if what == "complain":
        raise RuntimeError("complaint")
    if what == "hang":
        channel.send("hangs")
        time.sleep(1000)
    sys.exit(what)
"""


BOUND_MODULE = """
import os
from guided_plugin.ipc.channel import Channel

VARIABLES = "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"

def main(sock, parent):
    channel = Channel(sock)
    channel.send((os.sched_getaffinity(0), [name for name in VARIABLES if name in os.environ]))
    channel.drain()

def rank(answers):  # a host that is bound before it imports anything
    os.environ.update(dict.fromkeys(VARIABLES, "0"))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from guided_plugin.ipc.spawn import Child
    child = Child("bound_module")
    answers.put(Channel(child.sock).wait()[0])
    child.stop()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "spawned_module.py").write_text(MODULE)
    (tmp_path / "bound_module.py").write_text(BOUND_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def start(module):
    children = []

    def start(*arguments, **options):
        child = Child("spawned_module", *arguments, **options)
        children.append(child)
        return child, Channel(child.sock)

    yield start
    for child in children:
        child.stop()


def test_a_child_finds_the_hosts_modules_and_sees_no_device(start, capfd):
    child, channel = start("a", "b c", environment={"ADDED": "1"})
    assert channel.wait() == [(os.getpid(), ("a", "b c"), "", "1")]
    assert child.exit_code() is None
    channel.send(3)
    assert child.exit_code(20.0) == 3
    with pytest.raises(ChannelClosedError):
        channel.wait()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two processors")
def test_a_child_of_a_bound_host_has_the_processors_of_the_program(module):
    """As vLLM binds its ranks on the CPU: by OpenMP's variables, from their first
    library on."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    host = context.Process(
        target=importlib.import_module("bound_module").rank, args=(answers,)
    )
    host.start()
    assert answers.get() == (os.sched_getaffinity(0), [])
    host.join(20.0)
    assert host.exitcode == 0


def test_stop_ends_a_child_that_hangs(start):
    child, channel = start()
    channel.send("hang")
    while "hangs" not in channel.wait(time.monotonic() + 20):
        pass
    child.stop()
    assert child.exit_code() == -signal.SIGKILL
    assert gone(child.pid)
    child.stop()


def test_a_child_outlives_the_thread_that_asked_for_it_and_no_fork_has_its_end(
    start, monkeypatch
):
    """The kernel would end it with the thread that started it."""
    begun = threading.Event()
    made = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *a, **k: begun.set() or time.sleep(0.5) or popen(*a, **k),
    )
    thread = threading.Thread(target=lambda: made.append(start()))
    thread.start()
    begun.wait()
    if (fork := os.fork()) == 0:
        os._exit(signal.alarm(30) or signal.pause() or 0)
    thread.join()
    ((child, channel),) = made
    channel.wait()
    assert child.exit_code(0.1) is None
    child.kill()
    with pytest.raises(ChannelClosedError):
        channel.wait(time.monotonic() + 5.0)
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)


def test_what_prevents_a_start_is_an_os_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(OSError, match=r"sys\.executable is not set"):
        Child("spawned_module")
    monkeypatch.setattr(sys, "executable", "/nothing/here")
    with pytest.raises(FileNotFoundError):
        Child("spawned_module")
    monkeypatch.setattr(spawn, "_starter", spawn._Starter())
    monkeypatch.setattr(
        threading.Thread,
        "start",
        lambda thread: (_ for _ in ()).throw(RuntimeError("full")),
    )
    with pytest.raises(OSError, match="full"):
        Child("spawned_module")


BUSY = "print(flush=True)\nwhile True: pass"


@pytest.fixture
def busy():
    """A process that computes."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def looks(watch, seconds):
    """What the watch says, asked for some seconds."""
    end = time.monotonic() + seconds
    said = []
    while time.monotonic() < end:
        said.append(watch.stays_stopped())
        time.sleep(spawn.LOOK_SECONDS)
    return said


def test_a_process_that_stays_stopped_counts_after_a_while(busy):
    watch = StopWatch(busy.pid)
    os.kill(busy.pid, signal.SIGSTOP)
    said = looks(watch, 1.0)
    assert said[:2] == [False, False]
    assert said[-1]
    os.kill(busy.pid, signal.SIGCONT)
    assert not any(looks(watch, 0.5))


def test_a_slow_an_ended_and_an_unknown_process_do_not(busy):
    assert not any(looks(StopWatch(busy.pid), 0.5))
    os.kill(busy.pid, signal.SIGKILL)
    assert not any(looks(StopWatch(busy.pid), 0.5))  # a zombie
    busy.wait()
    assert not any(looks(StopWatch(busy.pid), 0.5))


def test_the_name_of_a_process_is_not_its_state(tmp_path):
    named = tmp_path / "a) T (b) T"
    named.symlink_to(sys.executable)
    with subprocess.Popen(
        [named, "-c", BUSY], stdout=subprocess.PIPE, env=os.environ
    ) as process:
        process.stdout.readline()
        assert not any(looks(StopWatch(process.pid), 0.5))
        process.kill()


def test_stops_of_a_moment_do_not_add_up(busy):
    watch = StopWatch(busy.pid)
    for _ in range(6):
        os.kill(busy.pid, signal.SIGSTOP)
        assert not watch.stays_stopped()
        time.sleep(spawn.LOOK_SECONDS)
        os.kill(busy.pid, signal.SIGCONT)
        time.sleep(spawn.LOOK_SECONDS)
        assert not watch.stays_stopped()


def test_a_watcher_that_did_not_look_knows_nothing_of_the_time_between(
    busy, monkeypatch
):
    watch = StopWatch(busy.pid)
    os.kill(busy.pid, signal.SIGSTOP)
    assert not watch.stays_stopped()
    time.sleep(1.1)  # both were stopped, and the watcher was continued first
    assert not watch.stays_stopped()
