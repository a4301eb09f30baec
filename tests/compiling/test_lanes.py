"""Which spec gets a helper next: slow ones keep quick ones waiting neither for a helper nor for a thread."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from strange_backend import LARGE, strange

from guided_plugin import OutputSpec
from guided_plugin.compiling import guard, lanes
from guided_plugin.compiling.background import Background, at_low_priority
from guided_plugin.compiling.lanes import Lanes, Turn
from guided_plugin.compiling.limits import is_heavy
from guided_plugin.errors import BusyError, CompileLimitError


def running(lanes, *turns):
    for turn in turns:
        turn.since = time.monotonic()
        lanes.begin(turn)


@pytest.mark.parametrize(
    ("helpers", "processors", "most"), [(1, 64, 1), (2, 64, 1), (4, 64, 3), (4, 2, 1), (8, 8, 4)]
)
def test_heavy_specs_leave_a_helper_and_half_of_the_processors(helpers, processors, most):
    line = Lanes(helpers, processors)
    for _ in range(most):
        turn = Turn(heavy=True)
        with line.queued(turn):
            assert line.may_run(turn)
        running(line, turn)
    heavy, quick = Turn(heavy=True), Turn(heavy=False)
    with line.queued(heavy), line.queued(quick):
        assert not line.may_run(heavy)
        assert line.may_run(quick)
        line.end(turn)
        assert line.may_run(heavy)


def test_first_come_first_served_in_each_lane():
    line = Lanes(4, 64)
    first, second, heavy = Turn(False), Turn(False), Turn(True)
    with line.queued(second), line.queued(heavy), line.queued(first):
        assert [line.may_run(turn) for turn in (second, first, heavy)] == [True, False, True]
    with line.queued(first):
        assert line.may_run(first)


def test_a_slow_one_of_the_quick_lane_is_preempted_only_for_others_of_it(monkeypatch):
    monkeypatch.setattr(lanes, "_QUICK_SECONDS", 0.0)
    line, slow, heavy, other = Lanes(2, 2), Turn(False), Turn(True), Turn(False)
    running(line, slow, heavy)
    assert line.overdue() is None
    with line.queued(Turn(True)):
        assert line.overdue() is None
    with line.queued(other):
        time.sleep(0.001)
        assert line.overdue() is slow
        slow.since = float("inf")  # its backend is still being made
        assert line.overdue() is None
    alone = Lanes(1, 2)
    running(alone, slow)
    with alone.queued(other):
        assert alone.overdue() is None


@pytest.mark.parametrize(
    ("spec", "heavy"),
    [
        (OutputSpec.regex(".*a.{110}"), True),
        (OutputSpec.regex("a.{10}" * 3), False),
        (OutputSpec.regex("x" * 1000), False),
        (OutputSpec.json_schema({"type": "string", "maxLength": 2000}), True),
        (OutputSpec.json_schema({"type": "array", "items": {"pattern": "^[a-z]{100}$"}}), True),
        (OutputSpec.json_schema({"type": "string", "maxLength": 100}), False),
        (OutputSpec.json_schema(LARGE), False),
        (OutputSpec.choice(["a" * 1000]), False),
    ],
)
def test_what_is_heavy_for_xgrammar(spec, heavy):
    assert is_heavy(spec, "xgrammar") is heavy
    assert not is_heavy(spec, "llguidance")


def test_a_flood_of_heavy_specs_leaves_quick_ones_their_helper(make, monkeypatch):
    monkeypatch.setattr(guard, "is_heavy", lambda spec, backend: backend == "strange")
    compiler = make(compile_seconds=120.0, compile_processes=2)
    compiler.compile(OutputSpec.json_schema(LARGE))
    slow = [compiler.compile_async(strange(f"sleep {i}")) for i in range(10)]
    for number in range(5):
        assert compiler.compile(OutputSpec.json_schema({**LARGE, "title": str(number)}))
    assert not any(future.done() for future in slow)
    assert len(compiler._guard.processes()) <= 2


def test_slow_specs_in_the_quick_lane_make_room_and_start_again(make):
    compiler = make(compile_seconds=8.0, compile_processes=2)
    slow = [compiler.compile_async(strange(f"sleep {i}")) for i in range(2)]
    while len(compiler._guard.processes()) < 2:
        time.sleep(0.01)
    assert compiler.compile(OutputSpec.json_schema(LARGE)).backend == "llguidance"
    errors = [future.exception(120) for future in slow]
    assert all(isinstance(error, CompileLimitError | BusyError) for error in errors)
    assert any("longer than" in str(error) for error in errors)


def test_identical_slow_specs_share_a_helper(make):
    compiler = make(compile_seconds=2.0, compile_processes=3)
    same = [compiler.compile_async(strange("sleep")) for _ in range(12)]
    with pytest.raises(CompileLimitError):
        same[0].result(60)
    assert {str(future.exception(60)) for future in same} == {str(same[0].exception())}
    assert compiler.cache_statistics().misses == 1


def test_a_queue_with_a_bound_says_that_it_is_full():
    go_on = threading.Event()
    background = Background(threads=1, most=3)
    waiting = [background.submit(go_on.wait) for _ in range(3)]
    with pytest.raises(BusyError, match="3 specs compile, or wait"):
        background.submit(go_on.wait)
    go_on.set()
    assert all(future.result(10) for future in waiting)
    end = time.monotonic() + 10
    while True:
        try:
            assert background.submit(lambda: True).result(10)
            return
        except BusyError:
            assert time.monotonic() < end


def test_helpers_give_way(make):
    compiler = make()
    compiler.compile(OutputSpec.json_schema(LARGE))
    (pid,) = compiler._guard.processes()
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0) or (
        os.getpriority(os.PRIO_PROCESS, 0) == 19
    )


def test_many_threads_ask_for_quick_and_slow_specs_at_once(make):
    compiler = make(compile_seconds=60.0, compile_processes=3)
    specs = [OutputSpec.json_schema({**LARGE, "title": str(number)}) for number in range(6)]
    with ThreadPoolExecutor(12) as pool:
        grammars = list(pool.map(compiler.compile, specs * 2))
    assert {grammar.backend for grammar in grammars} == {"llguidance"}
    assert compiler.cache_statistics().misses == 6


def test_what_compiles_again_gives_way_and_tells_its_errors():
    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    here = priority()
    assert at_low_priority(priority) == min(here + 5, 19)
    assert priority() == here
    with pytest.raises(ZeroDivisionError):
        at_low_priority(lambda: 1 // 0)
