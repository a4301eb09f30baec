"""vLLM's V2 model runner as the last stage of a pipeline, played: batches take turns."""

import random
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.worker_base import WorkerBase
from vllm_games import SPECS, Request, V2DraftGame, V2Game, played
from vllm_support import WIDTH, runner_config, runner_params

import guided_plugin as gp
from guided_plugin.hosts.vllm import health as worker_methods
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


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
    assert WorkerBase.guided_health(worker) == ""
    assert WorkerBase.guided_retry_after(worker) == 0
    last_stage.is_last_rank = True
    assert "not loaded" in WorkerBase.guided_health(worker)


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


def request_of(number, spec):
    request = Request(number, random.Random(1))
    request.spec = spec
    request.prompt = [1]
    request.params = runner_params(spec, None if spec is None else request.name)
    return request


def sample(game, batch, *, middle=False):
    """What a batch may sample, row by row. `middle`: of a prompt, where nothing
    counts."""
    mapping = torch.tensor(batch)
    context = LogitsContext(mapping, mapping, mapping.numpy(), *[None] * 4)
    masked = game.guide.apply(torch.zeros(len(batch), WIDTH), context)
    allowed = [row.isfinite().nonzero().view(-1).tolist() for row in masked]
    for index, tokens in zip(batch, allowed, strict=True):
        if not middle:
            game.tokens[index, game.total[index]] = tokens[0]
            game.total[index] += 1
            game.running[index].tokens.append(tokens[0])
    return allowed


@pytest.mark.parametrize(
    "old", [None, gp.OutputSpec.regex("(?=a)b")], ids=["unguided", "closed"]
)
@pytest.mark.parametrize("new", [SPECS[0], None], ids=["guided", "unguided"])
def test_v2_a_prompt_whose_parts_are_in_both_turns(last_stage, old, new):
    """It begins in the other's turn, at the index of a request that ended there, and
    ends in this one."""
    game = V2Game(staged(runner_config()), 0)
    game.enter(request_of(1, SPECS[0]))
    game.enter(request_of(2, old))
    first, second = game.running
    game.guide.apply_staged_writes()
    sample(game, [first, second])
    game.guide.apply_staged_writes()
    game.guide.apply_staged_writes()
    sample(game, [first, second])
    del game.running[second]
    game.free.append(second)
    game.enter(request_of(3, new))
    game.guide.apply_staged_writes()
    if new is not None:
        sample(game, [second], middle=True)
    game.guide.apply_staged_writes()
    got = sample(game, [first, second])
    assert [len(tokens) for tokens in got] == [3, WIDTH if new is None else 3]
