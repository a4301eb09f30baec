"""vLLM's V2 model runner as the last stage of a pipeline, played: batches take turns."""

from types import SimpleNamespace
from weakref import WeakSet

import pytest

pytest.importorskip("vllm")

from vllm.v1.worker.worker_base import WorkerBase
from vllm_games import V2DraftGame, V2Game, played
from vllm_support import runner_config

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
