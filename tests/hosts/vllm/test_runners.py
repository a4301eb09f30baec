"""Both of vLLM's model runners, played with its own types: rows that move, prompts in
chunks, preemption.

Every guided output is checked with a fresh matcher, and every unguided row against what
it was.
"""

import json
import os
import pathlib
import signal
from dataclasses import replace
from types import SimpleNamespace
from weakref import WeakSet

import jsonschema
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.worker_base import WorkerBase
from vllm_games import (
    COMPILER,
    SPECS,
    Request,
    V1Game,
    V2DraftGame,
    V2Game,
    assert_allowed,
    played,
)
from vllm_runners import V1, V2, V2Drafts
from vllm_support import END, WIDTH, runner_config, runner_params

import guided_plugin as gp
from guided_plugin.hosts.vllm import health as worker_methods
from guided_plugin.hosts.vllm.failures import FAILED
from guided_plugin.step import UNGUIDED
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


def v1(vllm_config, *params):
    """A processor of V1 with these requests, if any."""
    guide = GuidedLogitsProcessor(vllm_config, torch.device("cpu"), False)
    added = [(at, one, [], []) for at, one in enumerate(params)]
    guide.update_state(BatchUpdate(len(added), [], added, []))
    return guide


def seeds(inline, process):
    """Games of both modes."""
    return pytest.mark.parametrize(
        ("mode", "seed"),
        [*(("inline", seed) for seed in range(inline)), ("process", process)],
    )


@pytest.mark.parametrize("placeholders", [True, False])
@seeds(4, 9)
def test_v1_rows_move_come_and_go(mode, seed, placeholders):
    guide = v1(runner_config(mode))
    played(V1Game(guide, seed, placeholders=placeholders), 250)


@seeds(6, 11)
def test_v2_indices_are_used_again_and_batches_skip_requests(mode, seed):
    played(V2Game(runner_config(mode), seed), 250)


@seeds(5, 12)
def test_v2_drafts_are_judged_by_the_grammar(mode, seed):
    game = V2DraftGame(runner_config(mode), seed)
    metrics = played(game, 200)
    assert game.taken > 100
    assert mode == "inline" or metrics.worker.steps > 50


@pytest.mark.parametrize("cut_between_steps", [False, True])
def test_v1_output_that_is_cut_back_starts_again(cut_between_steps):
    """The second text is the next part of an input that is streamed."""
    output = []
    guide = v1(runner_config())
    for text in (b"abcdefgh", b"abcdefzz"):
        output.clear()
        params = runner_params(gp.OutputSpec.regex(text.decode()), "one")
        guide.update_state(BatchUpdate(1, [], [(0, params, [], output)], []))
        for step in range(14):
            logits = torch.zeros(1, WIDTH)
            guide.runner.mask(logits)
            token = logits.argmax(-1)
            guide.runner.sampled(token)
            output.append(int(token))
            if step == 5:
                if cut_between_steps:
                    guide.update_state(None)  # a plan that nothing is sampled for
                del output[5 if cut_between_steps else 2 :]
            guide.update_state(None)
        assert output[:9] == [*text, END]


def test_v1_an_unguided_batch_is_left_alone():
    guide = v1(runner_config(), SamplingParams())
    logits = torch.randn(1, WIDTH)
    assert guide.apply(logits) is logits
    assert guide.runner.engine.pipeline.metrics().steps == 0


CLOSED = json.loads(pathlib.Path(__file__).with_name("closed.json").read_text())


class ClosedRequest(Request):
    """One whose output is closed before its limit: as tight as it may be, or wider."""

    def __init__(self, number, rng):
        super().__init__(number, rng)
        self.schema = rng.choice(CLOSED)
        self.spec = gp.OutputSpec.json_schema(self.schema, close_before_length=True)
        self.limit = COMPILER.compile(self.spec).admission().least + rng.choice(
            [0, 1, 2, 4, 9, 20]
        )
        self.params = runner_params(self.spec.within(self.limit), self.name)

    def check(self):
        tokens = self.tokens[self.start :]
        assert_allowed(self.spec, tokens)
        if self.over:
            assert tokens[-1:] == [END], (self.schema, self.limit, bytes(tokens))
            jsonschema.validate(json.loads(bytes(tokens[:-1])), self.schema)


class ThinkingRequest(ClosedRequest):
    """One that thinks until it is led to its answer."""

    reluctance = 9
    end = tuple(b"</x>")

    def __init__(self, number, rng):
        super().__init__(number, rng)
        self.limit += len(self.end)
        spec = replace(self.spec, start_after=self.end)
        self.params = runner_params(spec.within(self.limit), self.name)

    @property
    def start(self):
        for at in range(len(self.tokens)):
            if tuple(self.tokens[:at][-len(self.end) :]) == self.end:
                return at
        return len(self.tokens)


@pytest.mark.parametrize("kind", [V1Game, V2Game, V2DraftGame])
@pytest.mark.parametrize("request_kind", [ClosedRequest, ThinkingRequest])
@pytest.mark.parametrize(("mode", "seed"), [("inline", 1), ("process", 2)])
def test_outputs_are_complete_at_their_limit(kind, request_kind, mode, seed):
    """Rows are preempted, steps planned again, drafts refused; a new worker keeps the
    promise of a killed one."""
    guide = runner_config(mode)
    if kind is V1Game:
        guide = v1(guide)
    game = kind(guide, seed)
    game.kind = request_kind
    runtime = game.guide.runner.engine.pipeline.runtime

    def kill(step):
        if step in (30, 90) and mode == "process":
            os.kill(runtime.supervisor.worker_pid, signal.SIGKILL)

    worker = played(game, 150, kill).worker
    assert worker.restarts == (2 if mode == "process" else 0)
    assert worker.led_tokens > worker.led_outputs > 20
    assert sum(len(request.tokens) == request.limit for request in game.done) > 10


@pytest.mark.parametrize("kind", [V1, V2, V2Drafts])
def test_an_engine_that_cannot_guide_closes_what_reaches_it(play, kind):
    asked = {"spec": SPECS[0], "min_tokens": 2}
    runner = play(kind, runner_config(enabled=False), one=asked, free={"spec": None})
    output = runner.step()
    first, free = runner.tokens
    assert first == [END]
    assert END not in free
    assert "switched off" in getattr(output, FAILED)["one"]


def test_stop_tokens_of_the_request_end_its_grammar():
    params = runner_params(SPECS[2])
    params._all_stop_token_ids = {END, ord("z")}
    guide = v1(runner_config(), params)
    spec = guide.runner.engine.pipeline._requests[0].spec
    # "z" is text: it ends the output, not the grammar
    assert spec.stop_token_ids == (END,)
    assert guide.runner._rows[0].guided.slot != UNGUIDED


@pytest.mark.parametrize(
    "mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
)
def test_v1_logprobs_are_those_of_the_masked_distribution(mode):
    guide = v1(
        runner_config(),
        runner_params(SPECS[0], logprobs=3),
        runner_params(None, logprobs=3),
    )
    logits = torch.randn(2, WIDTH)
    scores = logits.clone()
    scores[0, [at for at in range(WIDTH) if at not in (97, 98, 99)]] = -torch.inf
    expected = scores if mode.endswith("logits") else scores.log_softmax(-1)
    metadata = SimpleNamespace(
        max_num_logprobs=-1,
        logprob_token_ids=None,
        logitsprocs=SimpleNamespace(non_argmax_invariant=[guide], argmax_invariant=[]),
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        no_penalties=True,
        output_token_ids=[[], []],
        thinking_budget_state_holder=None,
        all_greedy=True,
        all_random=False,
        generators={},
    )
    output = Sampler(mode).forward(logits.to(torch.float32), metadata)
    assert torch.allclose(output.logprobs_tensors.logprobs, expected)
    assert output.sampled_token_ids.view(-1).tolist() == scores.argmax(-1).tolist()


def staged(vllm_config, stages=2):
    vllm_config.parallel_config.pipeline_parallel_size = stages
    vllm_config.use_v2_model_runner = True
    return vllm_config


@pytest.fixture
def last_stage(monkeypatch):
    """This process is the last stage of a pipeline."""
    group = SimpleNamespace(is_last_rank=True)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_pp_group", lambda: group)
    return group


def test_a_stage_that_does_not_sample_does_nothing(last_stage, monkeypatch):
    monkeypatch.setattr(worker_methods, "ENGINES", WeakSet())
    last_stage.is_last_rank = False
    shared = staged(runner_config())
    guide = GuidedLogitsProcessor(shared, SimpleNamespace())
    assert guide.runner is None
    worker = SimpleNamespace(vllm_config=shared)
    assert WorkerBase.guided_health(worker) == ("", 0.0)
    last_stage.is_last_rank = True
    assert "not loaded" in WorkerBase.guided_health(worker)[0]


@pytest.mark.parametrize(("seed", "stages"), [(0, 2), (1, 2), (2, 3)])
def test_v2_batches_of_stages_take_turns(last_stage, monkeypatch, seed, stages):
    """Each is planned before its forward pass, but for the requests that skipped a
    turn."""
    game = V2Game(staged(runner_config(), stages), seed)
    planned = []
    original = gp.StepPipeline.plan
    monkeypatch.setattr(
        gp.StepPipeline,
        "plan",
        lambda self, slots: (planned.append(slots), original(self, slots)),
    )
    played(game, 400)
    assert len(planned) < 400 * 1.3


@pytest.mark.parametrize("seed", range(2))
def test_v2_drafts_of_batches_that_take_turns(last_stage, seed):
    game = V2DraftGame(staged(runner_config()), seed)
    played(game, 200)
    assert game.taken > 50
