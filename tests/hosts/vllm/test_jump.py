"""Drafts that the grammars see when they are proposed, and forced text as drafts, in vLLM's V2 runner.

Every output is compared with that of a loop without drafts.
"""

import os
import signal

import pytest

pytest.importorskip("vllm")

from vllm_games import V2ProposeGame, played
from vllm_support import runner_config

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
