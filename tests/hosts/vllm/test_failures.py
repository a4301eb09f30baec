"""How a failed request reaches vLLM's scheduler: both model runners with vLLM's own
types, no engine."""

import pickle
import re
from types import SimpleNamespace

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.gpu_worker import Worker
from vllm_runners import V1, V2, V2Drafts
from vllm_support import END, WIDTH, config, runner_config, runner_params, told

import guided_plugin as gp
from guided_plugin.grammar.waiting import LED_OUTPUT, LED_REASONING
from guided_plugin.hosts.vllm import failures as vllm_failures
from guided_plugin.hosts.vllm import patches as vllm_contract
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.failures import FAILED, LED, STOP_REASON
from guided_plugin.hosts.vllm.hold import state_of
from guided_plugin.step import Closure

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

AB = gp.OutputSpec.regex("ab")


GUIDED = {"spec": AB}
RUNNERS = [V1, V2, V2Drafts]
ALL_BUT_A = [token for token in range(WIDTH) if token != ord("a")]


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_row_that_its_own_options_leave_nothing_of_fails_and_a_finished_one_does_not(
    play, kind, mode
):
    """One that is not guided at all is told with the first output."""
    runner = play(
        kind,
        runner_config(mode),
        cut={**GUIDED, "allowed_token_ids": [97]},
        over={**GUIDED, "min_tokens": 9},
        free=GUIDED,
        bad={"spec": gp.OutputSpec.regex("(?<=a)b"), "min_tokens": 9},
    )
    runner.forbidden = {0: ALL_BUT_A, 1: [END], 3: [END]}
    failed = dict(getattr(runner.step(), FAILED))
    assert runner.tokens[3] == [END]
    assert "ook" in failed.pop("bad")
    for _ in range(3):
        # the scheduler ends it at the first
        failed = (
            getattr(
                runner.step(),
                FAILED,
                {},
            )
            | failed
        )
    assert list(failed) == ["cut"]
    assert "allowed_token_ids leave no token that the grammar allows" in failed["cut"]
    assert runner.tokens[0][:2] == [ord("a"), END]
    assert bytes(runner.tokens[1][:2]) == bytes(runner.tokens[2][:2]) == b"ab"
    assert runner.tokens[1][2] == END  # min_tokens asks for more than the grammar has


@pytest.mark.parametrize("kind", RUNNERS)
def test_outputs_that_are_led_are_told_and_a_failure_of_theirs_wins(play, kind, mode):
    """The model goes on with "a" for ever."""
    spec = gp.OutputSpec.regex("a*b", close_before_length=True)
    led = {"spec": spec.within(6)}
    cut = {**led, "allowed_token_ids": [97]}
    wide = {"spec": spec.within(60)}
    runner = play(
        kind,
        runner_config(mode),
        led=led,
        cut=cut,
        wide=wide,
    )
    runner.forbidden = {1: ALL_BUT_A}
    outputs = [runner.step() for _ in range(6)]
    led = [
        name
        for output in outputs
        for name in getattr(
            output,
            LED,
            (),
        )
    ]
    assert sorted(led) == ["cut", "led"]
    # the scheduler ends it then
    failed = next(
        filter(
            None,
            (
                getattr(
                    output,
                    FAILED,
                    {},
                )
                for output in outputs
            ),
        )
    )
    assert "allowed_token_ids leave no token" in failed.pop("cut")
    assert not failed
    text = bytes(runner.tokens[0][: runner.tokens[0].index(END)])
    # fewer where a busy machine had no time to look for another way
    assert re.fullmatch(b"a{1,4}b", text)
    assert runner.engine.pipeline.metrics().worker.led_outputs == 2


def test_an_output_that_is_led_behind_a_draft_is_told_if_the_draft_is_taken(play, mode):
    """Its stop token comes in the same step."""
    spec = gp.OutputSpec.regex("a{1,9}", close_before_length=True).within(4)
    asked = {name: {"spec": spec} for name in ("led", "free")}
    runner = play(
        V2Drafts,
        runner_config(mode),
        **asked,
    )
    assert not hasattr(runner.step(), LED)
    runner.forbidden = {1: [ord("a")]}
    assert runner.step().guided_led == {"led": LED_OUTPUT}
    assert runner.tokens == [[*b"aaa", END], [*b"aa", END]]


def test_an_output_whose_end_cannot_be_proven_runs_on_and_is_counted(play, mode):
    spec = gp.OutputSpec.grammar('root ::= "a"*', close_before_length=True).within(3)
    runner = play(
        V1,
        runner_config(mode),
        one={"spec": spec},
    )
    runner.forbidden = {0: [END]}
    assert not any(hasattr(runner.step(), FAILED) for _ in range(3))
    assert bytes(runner.tokens[0][:3]) == b"aaa"
    told = runner.engine.pipeline.request("one").closed  # waits for the worker
    assert told == "unprotected: with xgrammar no end of its outputs is known"
    worker = runner.engine.pipeline.metrics().worker
    assert (worker.unprotected_outputs, worker.led_outputs) == (1, 0)


def test_a_failure_goes_with_the_first_closed_step_though_outputs_are_fetched_later(
    play, mode
):
    """What was sampled before is good; it may have ended the request as it should. An
    inline engine accepts tokens when the next step begins."""
    late = mode == "process"
    runner = play(
        V1,
        runner_config(mode),
        bad=GUIDED,
        good=GUIDED,
    )
    first = runner.step(later=late)
    # not what the mask allows
    runner.guide.runner.sampled(torch.tensor([[ord("q")], [ord("a")]]))
    second = runner.step(later=True)
    runner.engine.pipeline.request("bad")  # what the worker wrote is there
    empty = runner.engine.watch(EMPTY_MODEL_RUNNER_OUTPUT)
    third = runner.step(later=True)
    assert runner.tokens[0][1:] == [END, END]
    assert not hasattr(empty, FAILED)
    assert not hasattr(first.get_output() if late else first, FAILED)
    assert "breaks the grammar" in getattr(second.get_output(), FAILED)["bad"]
    assert not hasattr(third.get_output(), FAILED)


def test_one_whose_scheduler_does_not_name_requests_guides_nothing():
    params = runner_params(AB)
    params.extra_args = told(AB)
    runner = V2(
        runner_config(),
        ["one", "two"],
        [params] * 2,
    )
    runner.step()
    assert runner.tokens == [[END]] * 2
    assert "does not run the plugin" in runner.engine.health()[0]


def test_a_step_without_a_token_keeps_vllms_shared_output_as_it_was():
    ledger = vllm_failures.Ledger()
    ledger.add(Closure("one", vllm_failures.AT_ONCE, "why"))
    failed = ledger.attach(EMPTY_MODEL_RUNNER_OUTPUT, None)
    assert getattr(pickle.loads(pickle.dumps(failed)), FAILED) == {"one": "why"}
    assert not hasattr(EMPTY_MODEL_RUNNER_OUTPUT, FAILED)


class SimpleRequest:
    """A request of vLLM's, as far as the scheduler's wrapper looks at one."""

    def __init__(self, request_id, spec, tokens=()):
        self.request_id = request_id
        self.sampling_params = SimpleNamespace(extra_args=told(spec))
        self.output_token_ids = tokens
        self.structured_output_request = None

    def is_finished(self):
        return self.request_id == "over"


def scheduler_of(*requests, **changes):
    return SimpleNamespace(
        requests={one.request_id: one for one in requests}, **changes
    )


def updated(scheduler, *outputs, **news):
    """How these end, by what the output of a step says."""

    def update(scheduler, scheduled, output):
        if outputs[0].finish_reason is not None:
            scheduler.requests.clear()  # they are kept in no other place
        return {0: EngineCoreOutputs(outputs=[*outputs])}

    made = vllm_failures.update_from_output(
        scheduler,
        None,
        SimpleNamespace(**news),
        original=update,
    )[0].outputs
    return {one.request_id: (one.finish_reason, one.stop_reason) for one in made}


STOP = FinishReason.STOP
LENGTH = FinishReason.LENGTH
ENDS = {
    "led": (STOP, None, STOP, STOP_REASON),
    "last": (STOP, None, STOP, f"{STOP_REASON}: reasoning"),
    "cut": (LENGTH, None, LENGTH, None),
    "free": (STOP, 7, STOP, 7),
    "bad": (STOP, None, FinishReason.ERROR, "why"),
    "goes-on": (None, None, None, None),
}
"""What vLLM says of some requests, and what is told of them."""


@pytest.mark.parametrize("collection", [set, dict])
def test_failed_requests_end_as_errors_and_only_led_outputs_say_so(collection):
    if collection is dict:
        pytest.importorskip("vllm.outputs").__dict__.setdefault(
            "RequestError", SimpleNamespace
        )
    scheduler = scheduler_of(
        *(SimpleRequest(name, AB) for name in (*ENDS, "over")),
        grammar_compile_error_reqs=collection(),
    )
    led = dict.fromkeys(["led", "cut", "bad"], LED_OUTPUT)
    first = EngineCoreOutput("led", [97])
    assert updated(
        scheduler,
        first,
        guided_led=led,
    ) == {"led": (None, None)}
    every = [
        EngineCoreOutput(
            name,
            [END],
            finish_reason=finish,
            stop_reason=stop,
        )
        for name, (finish, stop, *_) in ENDS.items()
    ]
    failed = dict.fromkeys(["bad", "goes-on", "over", "unknown"], "why")
    news = {LED: {"last": LED_REASONING}, FAILED: failed}
    ends = {name: told for name, (_, _, *told) in ENDS.items()}
    found = updated(
        scheduler,
        *every,
        **news,
    )
    assert {name: [*told] for name, told in found.items()} == ends
    assert set(scheduler.grammar_compile_error_reqs) == {"bad", "goes-on"}
    assert not state_of(scheduler).watched


@pytest.mark.parametrize("reason", [STOP, LENGTH])
@pytest.mark.parametrize(
    ("tokens", "begun"),
    [([5, 6], False), ([5, 7, 6], True), ([7, 8], True), ([], False)],
)
def test_a_request_that_stops_before_its_constrained_part_began_is_an_error(
    reason, tokens, begun
):
    request = SimpleRequest(
        "one", gp.OutputSpec.choice(["ab"], start_after=[[7], [8, 7]]), tokens
    )
    scheduler = scheduler_of(request)
    vllm_failures.add_request(scheduler, request, original=lambda one, request: None)
    del request
    output = EngineCoreOutput(
        "one",
        tokens,
        finish_reason=reason,
    )
    finish, stop = updated(scheduler, output)["one"]
    cut = reason is STOP and not begun
    assert finish is (FinishReason.ERROR if cut else reason)
    assert ("before (7,) or (8, 7) (text or token ids) came" in str(stop)) == cut
    assert not state_of(scheduler).watched  # it keeps no request alive


def test_a_vllm_in_which_failures_could_not_be_told_guides_nothing(monkeypatch):
    other = config()
    other.scheduler_config.get_scheduler_cls = lambda: int
    with pytest.raises(gp.GuidedError, match="is not one of vLLM's"):
        Gate(other).admit(SamplingParams(extra_args={"guided": {"regex": "a"}}))
    looked_at = vllm_contract._broken
    for owner, name in ((Worker, "sample_tokens"), (Scheduler, "update_from_output")):
        looked_at.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(
                owner,
                name,
                None,
            )
            engine = V1(
                runner_config(),
                [],
                [],
            ).engine
        reason, seconds = engine.health()
        assert f":{owner.__name__}.{name}; refused" in reason
        assert seconds == float("inf")
    looked_at.cache_clear()
