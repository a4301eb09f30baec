"""Which processes count as stopped: those that the kernel says are, for long enough."""

import os
import signal
import subprocess
import sys
import time

import pytest

from guided_plugin.ipc import spawn
from guided_plugin.ipc.spawn import StopWatch

CODE = "print(flush=True)\nwhile True: pass"


@pytest.fixture
def busy():
    """A process that computes."""
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
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
    with subprocess.Popen([named, "-c", CODE], stdout=subprocess.PIPE, env=os.environ) as process:
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


def test_a_watcher_that_did_not_look_knows_nothing_of_the_time_between(busy, monkeypatch):
    watch = StopWatch(busy.pid)
    os.kill(busy.pid, signal.SIGSTOP)
    assert not watch.stays_stopped()
    time.sleep(1.1)  # both were stopped, and the watcher was continued first
    assert not watch.stays_stopped()
