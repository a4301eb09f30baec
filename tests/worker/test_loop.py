"""The worker's loop in a thread of this process, step by step, with the device played
by the test.

Here tokens land when the test says so: what a CPU host never does, and a GPU always.
"""

from collections import deque

import pytest
import worker_engine
from worker_engine import ABC, END, XYZ
from worker_runs import until

import guided_plugin as gp
from guided_plugin.errors import GrammarError, RequestError
from guided_plugin.grammar.table import Phase
from guided_plugin.ipc.channel import Channel
from guided_plugin.worker.engine import session
from guided_plugin.worker.messages import Ends, Hello
from guided_plugin.worker.words import Counter


def test_messages_take_effect_between_the_plans_they_were_sent_between(make_engine):
    engine = make_engine()
    engine.client.add(0, "old", ABC, ())
    first = engine.plan(0)
    engine.schedule(first)
    second = engine.plan(0)
    # Sent after the second plan, which waits for tokens: its row is still the old
    # request's.
    engine.client.remove(0)
    engine.client.add(0, "new", XYZ, ())
    engine.schedule(second)
    third = engine.plan(0)
    engine.until(lambda: engine.filled(first))
    engine.never(lambda: engine.filled(second))
    engine.land(first, ord("a"))
    assert engine.allowed(second, 0) == {ord("b")}
    engine.never(lambda: engine.filled(third))
    engine.land(second, ord("b"))
    # The old request's token did not reach the new one.
    assert engine.allowed(third, 0) == {ord("x")}
    assert engine.request(0).counted() == ()
    assert engine.request(0).error is None
    engine.schedule(third)
    engine.land(third, ord("x"))
    engine.until(lambda: engine.accepted(third))  # without waiting for the next plan


def unheard(engine, step):
    """The closures, as soon as the masks of a step are there; no message was
    received."""
    until(lambda: engine.filled(step), 60.0)
    return engine.client.requests.take_closed()


def test_a_broken_token_fails_its_request_alone_and_is_known_with_its_masks(
    make_engine,
):
    engine = make_engine()
    engine.client.add(0, "bad", ABC, ())
    engine.client.add(1, "good", XYZ, ())
    step = engine.plan(0, 1)
    engine.until(lambda: engine.filled(step))
    assert engine.client.requests.take_closed() == []
    engine.schedule(step)
    engine.land(step, ord("q"), ord("x"))
    step = engine.plan(1, 0)
    (closure,) = unheard(engine, step)
    assert closure[:2] == ("bad", step)
    assert "breaks the grammar" in closure.reason
    assert engine.client.requests.failures == deque()  # the message has not been read
    assert engine.allowed(step, 0) == {ord("y")}
    assert engine.allowed(step, 1) == {END}
    engine.until(lambda: engine.client.requests.failures)
    assert engine.client.requests.take_closed() == []  # it is told once
    assert engine.request(0).state.phase is Phase.FAILED
    assert engine.request(0).counted() == ()
    assert [slot for slot, _ in engine.client.requests.take_failures()] == [0]
    assert engine.request(1).state.phase is Phase.ACTIVE


def test_a_failure_is_known_though_its_request_has_left_or_its_worker_has_ended(
    make_engine,
):
    engine = make_engine()
    for slot, name in enumerate(("left", "stays", "next")):
        engine.client.add(slot, name, ABC, ())
    step = engine.plan(0, 1, 2)
    engine.until(lambda: engine.filled(step))
    engine.schedule(step)
    engine.land(step, ord("q"), ord("q"), ord("a"))
    step = engine.plan(0, 1, 2)
    until(lambda: engine.filled(step), 60.0)
    engine.client.remove(0)
    engine.end()  # its messages are lost
    engine.session.blame(2, "ended")
    engine.session.blame(2, "ended")
    engine.begin()
    closed = {
        closure.request_id: closure.step
        for closure in engine.client.requests.take_closed()
    }
    assert closed == {"left": step, "stays": step, "next": step + 1}
    assert "breaks the grammar" in str(engine.client.requests[1].error)
    assert engine.allowed(engine.plan(1), 0) == {END}


@pytest.mark.parametrize("isolate", [False, True])
def test_the_next_worker_goes_on_in_the_middle_of_everything(make_engine, isolate):
    engine = make_engine(first_step=2**32 - 2)
    engine.client.add(0, "one", ABC, ())
    engine.client.add(1, "two", XYZ, [ord("x")])
    engine.client.add(2, "gone", ABC, ())
    first = engine.plan(0, 1, 2)
    engine.until(lambda: engine.filled(first))
    engine.schedule(first)
    second = engine.plan(1, 2, 0)
    engine.schedule(second)
    engine.end()
    assert engine.codes == [0]
    # While there is no worker: one more leaves, another takes its slot, and the tokens
    # land.
    engine.client.remove(2)
    engine.client.add(2, "new", XYZ, ())
    engine.land(first, ord("a"), ord("y"), ord("a"))
    third = engine.plan(2, 0)
    engine.begin(isolate=isolate)
    assert engine.allowed(second, 0) == {ord("z")}
    assert engine.allowed(second, 1) == {END}  # nobody's row any more
    assert engine.allowed(second, 2) == {ord("b")}
    engine.land(second, ord("z"), END, ord("b"))
    assert engine.allowed(third, 0) == {ord("x")}
    assert engine.allowed(third, 1) == {ord("c")}
    assert bytes(engine.request(0).counted()) == b"ab"
    assert bytes(engine.request(1).counted()) == b"xyz"
    assert engine.request(2).counted() == ()
    assert {request.error for request in map(engine.request, range(3))} == {None}
    assert engine.region.load(Counter.DOING) == 0


def test_a_worker_may_be_quicker_than_what_the_engine_tells_it(
    make_engine, monkeypatch
):
    engine = make_engine()
    # the next worker has fewer messages before the plan than this one had
    for name in ("gone", "one"):
        engine.client.add(0, name, ABC, ())
        if name == "gone":
            engine.client.remove(0)
    engine.until(lambda: not engine.client.channel.pending)
    engine.end()
    step = engine.plan(0)

    class Slow(Channel):
        def send(self, message):
            super().send(message)
            # the worker has all that it needs to read the plan
            if isinstance(message, Hello):
                begun = engine.region.load(Counter.HEARTBEAT)
                engine.until(lambda: engine.region.load(Counter.HEARTBEAT) > begun + 3)

    monkeypatch.setattr(worker_engine, "Channel", Slow)
    engine.begin()
    assert engine.allowed(step, 0) == {ord("a")}


def test_what_failed_stays_closed_with_the_next_worker(make_engine):
    engine = make_engine()
    engine.client.add(
        0, "bad", gp.OutputSpec.choice(["ab"], stop_token_ids=[7]), [ord("q")]
    )
    engine.client.add(1, "good", ABC, ())
    # no step has the request: nothing waits for this
    engine.until(lambda: engine.client.requests[0].error)
    assert "breaks the grammar" in str(engine.request(0).error)
    engine.end()
    engine.begin()
    step = engine.plan(1, 0)
    assert engine.allowed(step, 0) == {ord("a")}
    assert engine.allowed(step, 1) == {7}
    engine.schedule(step)
    engine.land(step, ord("a"), 7)
    assert bytes(engine.request(1).counted()) == b"a"
    engine.client.remove(0)
    engine.client.add(0, "next", XYZ, ())
    assert engine.allowed(engine.plan(0), 0) == {ord("x")}


def test_a_grammar_is_waited_for_only_by_plans_that_name_it(make_engine, go_on):
    engine = make_engine(worker_grammar_ms=300)
    engine.client.add(0, "good", ABC, ())
    engine.client.add(1, "slow", gp.OutputSpec.choice(["slow"]), ())
    verdict = engine.client.prepare(gp.OutputSpec.choice(["slow as well"]))
    assert engine.allowed(engine.plan(0), 0) == {ord("a")}
    step = engine.plan(0, 1)
    engine.never(lambda: engine.filled(step))
    assert engine.allowed(step, 1) == {END}
    assert engine.allowed(step, 0) == {ord("a")}
    assert "was not ready 0.3 s after it was needed" in str(engine.request(1).error)
    go_on.set()
    engine.until(verdict.done)
    assert verdict.result().backend


def test_a_spec_that_compiles_no_more_fails_its_request(make_engine):
    engine = make_engine()
    bad = gp.OutputSpec.grammar("start: not_there", "lark")
    engine.client.add(0, "bad", bad, ())
    step = engine.plan(0)
    (closure,) = unheard(engine, step)
    assert closure[:2] == ("bad", step)
    assert engine.allowed(step, 0) == {END}
    error = engine.request(0).error
    assert isinstance(error, GrammarError)
    assert error.request_id == "bad"
    verdict = engine.client.prepare(bad)
    engine.until(verdict.done)
    assert isinstance(verdict.exception(), GrammarError)


def test_a_worker_says_why_it_gives_up(make_engine, monkeypatch):
    engine = make_engine()
    engine.until(lambda: bool(engine.said))
    engine.end()
    with monkeypatch.context() as patch:
        patch.setattr(session, "__version__", "0.0.1")
        engine.begin()
        engine.until(lambda: isinstance(engine.said[-1], Ends))
    assert "the engine's is 0.0.1" in engine.said[-1].reason
    engine.end()
    engine.said.clear()
    engine.begin()
    engine.channel.sock.send(b"\xff" * 8)
    engine.until(lambda: bool(engine.said))
    engine.until(lambda: isinstance(engine.said[-1], Ends))
    assert "channel between processes" in engine.said[-1].reason
    engine.thread.join(10)
    assert engine.codes[-1] == 1


def test_refusals_close_rows_without_a_worker_and_tell_their_steps(make_engine):
    engine = make_engine()
    for slot, name in enumerate(("one", "two", "idle")):
        engine.client.add(slot, name, ABC, ())
    engine.until(lambda: bool(engine.said))
    engine.end()
    closed = engine.client.requests.take_closed
    first = engine.plan(0)
    second = engine.plan(1)
    engine.client.close_outstanding(RequestError("on request"))
    told = {closure[:2] for closure in closed()}
    assert told == {("one", first), ("two", second)}
    assert engine.client.refusal() is None
    verdict = engine.client.prepare(XYZ)
    engine.client.refuse(RequestError("no more"), 60.0)
    with pytest.raises(RequestError, match="no more"):
        verdict.result(0)
    assert [closure[:2] for closure in closed()] == [("idle", second + 1)]
    assert engine.allowed(engine.plan(0), 0) == {END}
    assert "no more" in str(engine.client.refusal())
    assert 50.0 < engine.client.refused_for() <= 60.0
    with pytest.raises(RequestError, match="request late: no more"):
        engine.client.add(3, "late", XYZ, ())
    engine.client._refused_until = 0.0
    assert (engine.client.refused_for(), engine.client.refusal()) == (0.0, None)
    engine.client.add(3, "late", XYZ, ())
    engine.begin()
    step = engine.plan(0, 3)
    assert engine.allowed(step, 0) == {END}
    assert engine.allowed(step, 1) == {ord("x")}
