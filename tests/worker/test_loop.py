"""The worker's loop in a thread of this process, step by step, with the device played
by the test.

Here tokens land when the test says so: what a CPU host never does, and a GPU always.
"""

import pytest
import worker_engine
from worker_engine import ABC, XYZ
from worker_runs import until

import guided_plugin as gp
from guided_plugin.errors import GrammarError, RequestError
from guided_plugin.grammar.table import Phase
from guided_plugin.ipc.channel import Channel
from guided_plugin.worker.engine import session
from guided_plugin.worker.messages import Ends, Hello
from guided_plugin.worker.words import Counter


def test_messages_take_effect_between_the_plans_they_were_sent_between(engine):
    first = engine.first_step(old=ABC)
    second = engine.plan(0)
    # Sent after the second plan, which waits for tokens: its row is still the old
    # request's.
    engine.client.remove(0)
    engine.add(new=XYZ)
    engine.schedule(second)
    third = engine.plan(0)
    engine.never(lambda: engine.filled(second))
    engine.land(first, "a")
    assert engine.shown(second) == "b"
    engine.never(lambda: engine.filled(third))
    engine.land(second, "b")
    # The old request's token did not reach the new one.
    assert engine.shown(third) == "x"
    request = engine.request(0)
    assert ([*request.state.tokens], request.error) == ([], None)
    engine.schedule(third)
    engine.land(third, "x")
    accepted = Counter.ACCEPTED  # without waiting for the next plan
    engine.until(lambda: engine.region.load(accepted) == third)


def closed_by(engine):
    """The closures that are known now, by request: the step and the reason."""
    closures = engine.client.requests.take_closed()
    return {one.request_id: (one.step, one.reason) for one in closures}


def unheard(engine, step):
    """The closures, as soon as the masks of a step are there; no message was
    received."""
    until(lambda: engine.filled(step), 60.0)
    return closed_by(engine)


def test_a_broken_token_fails_its_request_alone_and_is_known_with_its_masks(engine):
    step = engine.first_step(bad=ABC, good=XYZ)
    requests = engine.client.requests
    assert closed_by(engine) == {}
    engine.land(step, "qx")
    step = engine.plan(1, 0)
    ((name, (closed, reason)),) = unheard(engine, step).items()
    assert (name, closed, *requests.failures) == ("bad", step)  # no message was read
    assert "breaks the grammar" in reason
    assert engine.shown(step) == "y|."
    engine.until(lambda: requests.failures)
    assert closed_by(engine) == {}  # it is told once
    states = [engine.request(slot) for slot in (0, 1)]
    assert [one.state.phase for one in states] == [Phase.FAILED, Phase.ACTIVE]
    assert not states[0].state.tokens
    assert [slot for slot, _ in requests.take_failures()] == [0]


def test_a_failure_is_known_though_its_request_has_left_or_its_worker_has_ended(engine):
    first = engine.first_step(
        early=ABC,
        left=ABC,
        stays=ABC,
        next=ABC,
    )
    step = engine.plan(
        0,
        1,
        2,
        3,
    )
    # vLLM takes the tokens of steps in flight of a request that it preempts
    engine.client.remove(0)
    engine.land(first, "qqqa")
    until(lambda: engine.filled(step), 60.0)
    engine.client.remove(1)
    engine.end()  # its messages are lost
    engine.session.blame(3, "ended")
    engine.session.blame(3, "ended")
    engine.begin()
    closed = {name: at for name, (at, _) in closed_by(engine).items()}
    assert closed == {"early": step, "left": step, "stays": step, "next": step + 1}
    assert "breaks the grammar" in str(engine.client.requests[2].error)
    assert engine.shown(engine.plan(2)) == "."


@pytest.mark.parametrize("isolate", [False, True])
def test_the_next_worker_goes_on_in_the_middle_of_everything(make_engine, isolate):
    engine = make_engine(first_step=2**32 - 2)
    engine.add(
        1,
        two=XYZ,
        tokens="x",
    )
    engine.add(2, gone=ABC)
    engine.add(one=ABC)
    first = engine.plan(
        0,
        1,
        2,
    )
    assert engine.shown(first) == "a|y|a"
    engine.schedule(first)
    second = engine.plan(
        1,
        2,
        0,
    )
    engine.schedule(second)
    engine.end()
    assert engine.codes == [0]
    # While there is no worker: one more leaves, another takes its slot, and the tokens
    # land.
    engine.client.remove(2)
    engine.add(2, new=XYZ)
    engine.land(first, "aya")
    third = engine.plan(2, 0)
    engine.begin(isolate=isolate)
    assert engine.shown(second) == "z|.|b"  # no request has that row any more
    assert closed_by(engine)["gone"][0] == second
    engine.land(second, "z.b")
    assert engine.shown(third) == "x|c"
    requests = [engine.request(slot) for slot in range(3)]
    assert [bytes(one.state.tokens.tolist()) for one in requests] == [
        b"ab",
        b"xyz",
        b"",
    ]
    assert {request.error for request in requests} == {None}
    assert engine.region.load(Counter.DOING) == 0


def test_a_worker_may_be_quicker_than_what_the_engine_tells_it(engine, monkeypatch):
    # the next worker has fewer messages before the plan than this one had
    engine.add(gone=ABC)
    engine.client.remove(0)
    engine.add(one=ABC)
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

    monkeypatch.setattr(
        worker_engine,
        "Channel",
        Slow,
    )
    engine.begin()
    assert engine.shown(step) == "a"


def test_what_failed_stays_closed_with_the_next_worker(engine):
    engine.add(bad=gp.OutputSpec.choice(["ab"], stop_token_ids=[7]), tokens="q")
    engine.add(1, good=ABC)
    # no step has the request: nothing waits for this
    engine.until(lambda: engine.client.requests[0].error)
    assert "breaks the grammar" in str(engine.request(0).error)
    engine.end()
    engine.begin()
    step = engine.plan(1, 0)
    assert engine.shown(step) == "a|\7"
    engine.schedule(step)
    engine.land(step, "a\7")
    assert bytes(engine.request(1).state.tokens.tolist()) == b"a"
    engine.client.remove(0)
    engine.add(next=XYZ)
    assert engine.shown(engine.plan(0)) == "x"


def test_a_grammar_is_waited_for_only_by_plans_that_name_it(make_engine, go_on):
    engine = make_engine(worker_grammar_ms=300)
    engine.add(good=ABC, slow=gp.OutputSpec.choice(["slow"]))
    verdict = engine.client.prepare(gp.OutputSpec.choice(["slow as well"]))
    assert engine.shown(engine.plan(0)) == "a"
    step = engine.plan(0, 1)
    engine.never(lambda: engine.filled(step))
    assert engine.shown(step) == "a|."
    assert "was not ready 0.3 s after it was needed" in str(engine.request(1).error)
    go_on.set()
    engine.until(verdict.done)
    assert verdict.result().backend


def test_a_spec_that_compiles_no_more_fails_its_request(engine):
    bad = gp.OutputSpec.grammar("start: not_there", "lark")
    engine.add(bad=bad)
    step = engine.plan(0)
    assert unheard(engine, step)["bad"][0] == step
    assert engine.shown(step) == "."
    error = engine.request(0).error
    assert isinstance(error, GrammarError)
    assert error.request_id == "bad"
    verdict = engine.client.prepare(bad)
    engine.until(verdict.done)
    assert isinstance(verdict.exception(), GrammarError)


def test_a_worker_says_why_it_gives_up(engine, monkeypatch):
    engine.until(lambda: bool(engine.said))
    engine.end()
    with monkeypatch.context() as patch:
        patch.setattr(
            session,
            "__version__",
            "0.0.1",
        )
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


def test_refusals_close_rows_without_a_worker_and_tell_their_steps(engine):
    engine.add(
        one=ABC,
        two=ABC,
        idle=ABC,
    )
    engine.until(lambda: bool(engine.said))
    engine.end()
    client = engine.client
    steps = [engine.plan(0), engine.plan(1)]
    client.remove(1)
    verdict = client.prepare(XYZ)
    client.refuse(RequestError("no more"), 60.0)
    with pytest.raises(RequestError, match="no more"):
        verdict.result(0)
    closed = [at for at, _ in closed_by(engine).values()]
    assert closed == [*steps, steps[1] + 1]
    assert engine.shown(engine.plan(0)) == "."
    assert client.refused_for() > 50.0
    with pytest.raises(RequestError, match="request late: no more"):
        engine.add(3, late=XYZ)
    client._refused_until = 0.0
    assert client.refused_for() == 0.0
    engine.add(3, late=XYZ)
    engine.begin()
    assert engine.shown(engine.plan(0, 3)) == ".|x"
