"""Drafts that the grammars see when they are proposed, and forced text as drafts, in vLLM's V2 runner.

Every output is compared with that of a loop without drafts.
"""

import logging
import os
import signal
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs
from vllm_games import played
from vllm_proposals import V2ProposeGame
from vllm_support import runner_config

from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm.jump import create_engine_config

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(("mode", "seed"), [*(("inline", seed) for seed in range(3)), ("process", 4)])
def test_masks_along_the_drafts_of_others(mode, seed, drawn):
    game = V2ProposeGame(runner_config(mode), seed, drawn=drawn)
    played(game, 200)
    assert game.taken > 50


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forced_text_in_place_of_the_drafts_of_others(seed, drawn):
    game = V2ProposeGame(runner_config("process", jump_forward=True), seed, drawn=drawn)
    played(game, 200)
    assert game.taken > 50


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forced_text_as_drafts(seed):
    game = V2ProposeGame(runner_config("process", jump_forward=True), seed, own=True)
    played(game, 200)
    assert game.taken > 50 or not game.wrapped
    assert (game.offered > 0) == game.wrapped


def test_outputs_stay_the_same_when_the_grammar_worker_is_killed():
    game = V2ProposeGame(runner_config("process", jump_forward=True), 1, own=True)
    supervisor = game.guide.runner.engine.pipeline.runtime.supervisor

    def kill(step):
        if step in (30, 80):
            os.kill(supervisor.worker_pid, signal.SIGKILL)

    worker = played(game, 120, kill).worker
    assert worker.restarts == 2
    assert 0 < worker.taken <= worker.offered
    assert worker.forwards > 100
    assert 0 < worker.answer <= worker.answer_p95 < 1


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.INFO, "guided_plugin")


def arguments(**changes):
    """An engine's, as far as they count here."""
    given = {"speculative_config": None, "additional_config": {"guided_plugin": {"jump_forward": True}}}
    return SimpleNamespace(**{**given, **changes})


def configured(given, *, v2=True, device="cuda", nodes=1, error=None):
    """The configurations that vLLM is asked to make of these arguments: the last one is the engine's."""
    asked = []

    def create(arguments):
        asked.append(arguments)
        if error is not None and arguments.speculative_config is not None:
            raise ValueError(error)
        return SimpleNamespace(
            use_v2_model_runner=v2,
            device_config=SimpleNamespace(device_type=device),
            parallel_config=SimpleNamespace(nnodes=nodes),
        )

    create_engine_config(create)(given)
    return asked


def test_an_engine_without_a_drafter_gets_one():
    (made,) = configured(arguments())
    assert made.speculative_config["num_speculative_tokens"] == 7
    assert made.additional_config["guided_plugin_jump"]
    more = {"guided_plugin": {"jump_forward": True, "jump_drafts": 3}}
    (made,) = configured(arguments(additional_config=more))
    assert made.speculative_config["num_speculative_tokens"] == 3


def test_batches_of_more_than_so_many_requests_have_no_drafts():
    dynamic = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils")
    more = {"guided_plugin": {"jump_forward": True, "jump_rows": 5}}
    (made,) = configured(arguments(additional_config=more))
    given = made.speculative_config["num_speculative_tokens_per_batch_size"]
    known = dynamic.build_dynamic_sd_schedule_lookup(given, 9, 7)
    assert known[1:] == [7] * 5 + [0] * 4


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("V1 model runner", {"v2": False}),
        ("needs CUDA, and the model runs on 'cpu'", {"device": "cpu"}),
        ("several machines", {"nodes": 2}),
        ("no adaptive verification with LoRA", {"error": "no adaptive verification with LoRA"}),
    ],
)
def test_where_it_cannot_be_the_engine_runs_without_and_the_log_says_why(caplog, why, options):
    given = arguments()
    asked = configured(given, **options)
    assert asked[-1] is given
    assert given.speculative_config is None
    assert why in caplog.text
    assert "jump_forward stays off" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"speculative_config": {"method": "ngram_gpu", "num_speculative_tokens": 3}},
        {"additional_config": {}},
        {"additional_config": {"guided_plugin": {"jump_forward": True, "enabled": False}}},
        {"additional_config": {"guided_plugin": {"jump_forward": "perhaps"}}},
    ],
)
def test_other_engines_are_left_alone(caplog, changes):
    given = arguments(**changes)
    assert configured(given) == [given]
    assert caplog.text == ""


def test_vllms_own_arguments_where_it_cannot_be(caplog, monkeypatch):
    monkeypatch.setenv("GUIDED_PLUGIN", '{"jump_forward": true}')
    config = EngineArgs(str(MODEL_DIR), load_format="dummy", enforce_eager=True).create_engine_config()
    assert config.speculative_config is None
    assert "jump_forward stays off" in caplog.text
