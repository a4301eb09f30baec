"""Drafts that the grammars see when they are proposed, and forced text as drafts, in
vLLM's V2 runner.

Every output is compared with that of a loop without drafts.
"""

import logging
import os
import random
import signal
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive
from vllm_games import played
from vllm_proposals import V2ProposeGame
from vllm_support import runner_config

from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm import jump

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("mode", "jumps"), [("inline", False), ("process", False), ("process", True)]
)
def test_drafts_of_others_with_masks_along_them_or_forced_text_in_their_place(
    mode, jumps, seed, drawn
):
    game = V2ProposeGame(runner_config(mode, jump_forward=jumps), seed, drawn=drawn)
    played(game, 200)
    assert game.taken > 50


def test_proposals_alone_tell_the_worker_that_there_is_time_and_how_much(monkeypatch):
    game = V2ProposeGame(runner_config("process", jump_forward=True), 1, own=True)
    runtime = game.guide.runner.engine.pipeline.runtime
    steps = 100
    plan = Mock(side_effect=runtime.plan)
    monkeypatch.setattr(runtime, "plan", plan)
    played(game, steps)
    said = [call.kwargs["offers"] for call in plan.call_args_list]
    # of requests that enter; where no drafts are asked for; else
    assert set(said) == {None, False, True}
    assert sum(one is not None for one in said) <= steps


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
    given = {
        "speculative_config": None,
        "additional_config": {"guided_plugin": {"jump_forward": True}},
    }
    return SimpleNamespace(**{**given, **changes})


def configured(given, *, v2=True, device="cuda", nodes=1, sharded=None, error=None):
    """The configurations that vLLM is asked to make of these arguments: the last one is
    the engine's."""
    asked = []

    def create(arguments):
        asked.append(arguments)
        if error is not None and arguments.speculative_config is not None:
            raise ValueError(error)
        return SimpleNamespace(
            use_v2_model_runner=v2,
            device_config=SimpleNamespace(device_type=device),
            parallel_config=SimpleNamespace(
                nnodes=nodes, enable_batch_sharded_sampling=sharded
            ),
        )

    jump.create_engine_config(create)(given)
    return asked


def test_an_engine_without_a_drafter_gets_one():
    (made,) = configured(arguments())
    assert made.speculative_config["num_speculative_tokens"] == 7
    assert made.additional_config["guided_plugin_jump"]
    more = {"guided_plugin": {"jump_forward": True, "jump_drafts": 3}}
    (made,) = configured(arguments(additional_config=more))
    assert made.speculative_config["num_speculative_tokens"] == 3


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("V1 model runner", {"v2": False}),
        ("needs CUDA, and the model runs on 'cpu'", {"device": "cpu"}),
        ("several machines", {"nodes": 2}),
        ("each rank samples a part of the batch", {"sharded": True}),
        (
            "no adaptive verification with LoRA",
            {"error": "no adaptive verification with LoRA"},
        ),
    ],
)
def test_where_it_cannot_be_the_engine_runs_without_and_the_log_says_why(
    caplog, why, options
):
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
        {
            "additional_config": {
                "guided_plugin": {"jump_forward": True, "enabled": False}
            }
        },
        {"additional_config": {"guided_plugin": {"jump_forward": "perhaps"}}},
    ],
)
def test_other_engines_are_left_alone(caplog, changes):
    given = arguments(**changes)
    assert configured(given) == [given]
    assert caplog.text == ""


def test_vllms_own_arguments_where_it_cannot_be(caplog, monkeypatch):
    monkeypatch.setenv("GUIDED_PLUGIN", '{"jump_forward": true}')
    config = EngineArgs(
        str(MODEL_DIR), load_format="dummy", enforce_eager=True
    ).create_engine_config()
    assert config.speculative_config is None
    assert "jump_forward stays off" in caplog.text
    assert "V2 runner on CUDA" in caplog.text
    assert "pydantic" not in caplog.text


def trial(cost, gain, steps, seed=0):
    """A size of batches for so many steps; the part of them with drafts, and the time
    of a token beside that without."""
    chance = random.Random(seed)
    one = jump.SizeTrial()
    spent = tokens = drafted = 0
    ways = deque(maxlen=5)
    for _ in range(steps):
        got = 1 + (chance.random() < 2 * gain) / 2 if one.on else 1
        took = (
            (cost if one.on else 1.0)
            * chance.uniform(0.98, 1.02)
            * (5 if chance.random() < 0.1 else 1)
        )
        drafted += one.on
        spent = spent + took
        tokens = tokens + got
        ways.append(one.on)
        one.add(took, got, settled=len(set(ways)) == 1, prompts=False)
    return drafted / steps, spent / tokens / 1.4, one


@pytest.mark.parametrize(("cost", "gain"), [(1.05, 0.4), (1.04, 0.2)])
def test_a_size_that_is_faster_with_drafts_keeps_them(cost, gain):
    drafted, took, one = trial(cost, gain, 20_000)
    assert drafted > 0.97
    assert took < (cost / (1 + gain) + 0.015)
    assert not one.worse


@pytest.mark.parametrize(("cost", "gain"), [(1.2, 0.05), (1.05, 0.0)])
def test_a_size_that_is_slower_with_drafts_goes_without_and_tries_again(cost, gain):
    drafted, took, one = trial(cost, gain, 20_000)
    # trials cost so much of the time
    assert 0.002 < drafted * (cost / (1 + gain) - 1) < 0.006
    assert took < 1.01
    assert one.worse
    # What is drafted pays from now on.
    for _ in range(5000):
        one.add(1.0, 1.5 if one.on else 1.0, settled=True, prompts=False)
    assert not one.worse


class Batches:
    """A scheduler's batches, of so many rows each, and a clock that they move."""

    def __init__(self, monkeypatch, *guided):
        config = SimpleNamespace(additional_config={"guided_plugin_jump": True})
        self.scheduler = SimpleNamespace(
            dynamic_sd_lookup=[0, 7, 7], vllm_config=config
        )
        self.switch = jump.switch_of(self.scheduler)
        self.now = 0.0
        self.switch.guided.update(guided)
        monkeypatch.setattr(jump.time, "perf_counter", lambda: self.now)

    def drafts(self, rows):
        return self.scheduler.dynamic_sd_lookup[rows]

    def run(self, rows, seconds, tokens=1, finished=(), prompts=""):
        """How many drafts a row of the next one has."""
        self.now += seconds
        step = SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(
                range(rows), 100 if prompts == "part" else 8
            ),
            finished_req_ids=set(finished),
            scheduled_new_reqs=[None] * (prompts == "new"),
        )
        self.switch.note(step, [[0] * tokens] * rows)
        return self.drafts(rows)


def test_steps_have_drafts_while_guided_requests_are_there(monkeypatch):
    batches = Batches(monkeypatch)
    assert jump.switch_of(batches.scheduler) is batches.switch
    assert batches.run(4, 1.0) == 0
    batches.switch.guided |= {"a", "b"}
    assert batches.drafts(1) == batches.drafts(300) == 7
    assert batches.run(4, 1.0, finished=["a", "c"]) == 7
    batches.run(0, 1.0, finished=["b"])
    assert batches.drafts(1) == 0


def test_the_drafts_of_another_speculative_config_are_its_own():
    for lookup in (None, [0, 3]):
        scheduler = SimpleNamespace(
            dynamic_sd_lookup=lookup, vllm_config=SimpleNamespace(additional_config={})
        )
        assert jump.switch_of(scheduler) is None
        assert scheduler.dynamic_sd_lookup == lookup


def test_a_size_that_is_slower_with_drafts_has_none_and_the_log_says_so(
    monkeypatch, caplog
):
    """About 64 rows take twice as long with drafts; others are faster with them."""
    batches = Batches(monkeypatch, "a")
    counts = {3: 0, 63: 0, 64: 0, 128: 0}
    for turn in range(12_000):
        rows = (3, 64, 128)[turn // 100 % 3]
        rows -= rows == 64 and turn % 2
        drafts = batches.drafts(rows) > 0
        pays = rows in (3, 128)
        counts[rows] += drafts
        batches.run(
            rows, 2.0 if drafts and not pays else 1.0, 2 if drafts and pays else 1
        )
    assert min(counts[3], counts[128]) > 3900
    assert counts[63] + counts[64] < 150
    assert "batches of about 64 requests have no drafts from now on" in caplog.text


def test_steps_between_batches_of_other_ways_say_nothing(monkeypatch):
    """Of two sizes in turn one has no drafts; where steps follow it, the other one gets
    none in time."""
    batches = Batches(monkeypatch, "a")
    for _ in range(600):
        batches.run(8, 2.0 if batches.drafts(8) else 1.0, 1)
    assert batches.drafts(8) == 0
    for turn in range(400):
        rows = 8 if turn % 2 else 64
        batches.run(rows, 1.5 if rows == 64 and batches.drafts(64) else 1.0, 1)
    assert batches.drafts(64) == 7


@pytest.mark.parametrize("kind", ["new", "part"])
def test_steps_with_prompts_are_not_compared_with_others(monkeypatch, kind):
    """New ones, or parts of long ones: they take four times as long, and come in
    bursts. A trial may have other steps than what it is compared with; one that has
    only such says nothing."""
    batches = Batches(monkeypatch, "a")
    drafted = 0
    for turn in range(6000):
        drafts = batches.drafts(64) > 0
        prompts = kind if turn // 35 % 2 else ""
        drafted += drafts
        seconds = (4.0 if prompts else 1.0) * (1.7 if drafts else 1)
        batches.run(64, seconds, 2 if drafts else 1, prompts=prompts)
    assert drafted > 5800


@pytest.mark.parametrize(
    ("more", "each", "rests"), [(0.4, 0, 3), (0.2, 0, 1), (0, 0, 0), (0, 0.05, 0)]
)
def test_requests_begin_in_fewer_steps_where_that_pays(monkeypatch, more, each, rests):
    """Four of 64 end in each step; a pause leaves them without a successor for so many
    more."""
    batches = Batches(monkeypatch)
    waiting = 0
    pauses = 0
    queue = rests != 1
    batches.switch.scheduled(64, 8, queue=queue)
    assert not batches.switch.pauses(64)  # nothing guided
    batches.switch.guided.add("a")
    for turn in range(24_000):
        quiet = turn % 300 >= 200  # none end, and nothing is learnt of pauses
        begun, waiting = (
            (0, waiting + 4) if quiet or batches.switch.pauses(64) else (waiting + 4, 0)
        )
        waiting = waiting * (not quiet)
        pauses = pauses + (not begun and not quiet)
        batches.switch.scheduled(64, 8 * begun, queue=queue)
        batches.run(
            64 - waiting,
            1 + more * (begun > 0) + each * begun,
            prompts="new" if begun else "",
        )
    assert rests / (rests + 1) - 0.05 < pauses / 16_000 < rests / (rests + 1) + 0.08
    # none, for longer than a pause; prompts that take longer than drafts
    for begun in (0, 64 * 8 + 1):
        for _ in range(4):
            batches.switch.scheduled(64, begun, queue=True)
        assert not batches.switch.pauses(64)


def test_neither_trial_waits_for_the_other(monkeypatch):
    """Where one of pauses began, and no request does any more; where they do in one of
    drafts."""
    batches = Batches(monkeypatch, "a")
    begun = 8
    drafted = 0
    paused = 0
    for _ in range(4000):
        batches.switch.scheduled(64, begun, queue=True)
        begun *= batches.switch.pauses(64)
        drafted += batches.run(64, 1.0 if begun or not batches.drafts(64) else 1.5) > 0
    assert drafted < 1000
    while not batches.drafts(64):
        batches.run(64, 1.0)
    for _ in range(1000):
        batches.switch.scheduled(64, 8, queue=True)
        paused += batches.switch.pauses(64)
        batches.run(64, 1.0)
    assert paused > 500


def test_a_pause_between_requests_is_not_the_time_of_a_step(monkeypatch):
    batches = Batches(monkeypatch, "a")
    for _ in range(400):
        drafts = batches.drafts(2) > 0
        batches.run(0, 0.0)
        batches.run(2, 100.0 if drafts else 1.0, 2 if drafts else 1)
        batches.run(2, 1.0, 2 if drafts else 1)
    assert batches.drafts(2) == 7


@pytest.mark.parametrize("since_033", [False, True])
def test_drafts_are_placed_where_vllm_places_them_as_many_as_pay(
    monkeypatch, since_033
):
    monkeypatch.setattr(
        adaptive,
        "_assign_draft_token_budget_compiled",
        adaptive._assign_draft_token_budget,
    )
    requests, drafts = size = 40, 7
    rng = random.Random(1)
    _ = torch.manual_seed(1)
    names = [*map(str, range(requests))]
    states = SimpleNamespace(max_num_reqs=requests, device=torch.device("cpu"))
    states.req_id_to_index = {name: at for at, name in enumerate(reversed(names))}
    states.num_computed_tokens_np = np.full(requests, 5)
    states.prefill_len = SimpleNamespace(np=np.array([5, 8] * (requests // 2)))

    def manager(**config):
        made = object.__new__(adaptive.AdaptiveVerificationManager)
        made.num_speculative_steps = drafts
        made.num_bonus_tokens = 1
        made._max_total_logits = 180
        (
            made.query_start_loc,
            made._cu_num_logits,
            made._num_non_draft_tokens,
            made._batch_draft_capacity,
        ) = (torch.full((requests + 1,), -7, dtype=torch.int32) for _ in range(4))
        made._confidence_probs = torch.zeros(size)
        made._stale_idx = 0
        made._stale_confidences = [
            CpuGpuBuffer(*size, dtype=torch.float32, device="cpu") for _ in "12"
        ]
        made._copy_events = [Mock(), Mock()]
        made.cost_tables = np.full(requests + 1, 0.5), 6.6 + 0.05 * np.arange(1000)
        made.req_states = states
        if since_033:
            made._copy_admitted_drafts_to_host = False
        config = SimpleNamespace(additional_config=config)
        create = jump.maybe_create_adaptive_verification_manager(lambda **_: made)
        assert create(req_states=states, vllm_config=config) is made
        return made

    ours = manager(guided_plugin_jump=True)
    theirs = manager()
    lately = [1.0] * jump._LATELY
    before = torch.zeros(requests, drafts)
    for at in range(100):
        # What was offered in this step is on the host a step later.
        offered = torch.rand(size) * (torch.rand(requests, 1) < 0.4)
        ours.record_confidences(offered, None)
        ours._copy_events[1 - at % 2].synchronize.assert_called_with()
        ours._copy_events[at % 2].record.assert_called_with()
        batch = rng.sample(names, rng.randint(1, requests))
        places = {
            name: ["?"] * rng.choice([1, drafts])
            for name in batch
            if rng.random() < 0.9
        }
        places = places or {batch[0]: ["?"]}
        others = {name: rng.randint(1, 7) for name in batch}
        tokens = {name: others[name] + len(places.get(name, ())) for name in batch}
        rows = [states.req_id_to_index[name] for name in places]
        lately = [*lately[1:], (before[rows] > 0).sum().item() / len(rows)]
        most = min(sum(map(len, places.values())), 180 - len(batch))
        least = sum(others.values())
        samples = sum(
            5 + others[name] >= (5, 8)[states.req_id_to_index[name] % 2]
            for name in batch
        )
        counts = np.ceil(np.array(lately) * len(rows) - 1e-9)
        worth = [
            (samples + np.minimum(counts, budget).mean())
            / (7.1 + 0.05 * (least + budget))
            for budget in range(most + 1)
        ]
        found = ours.get_num_tokens(tokens, places) - least
        assert worth[found] == pytest.approx(max(worth))
        # no two alike
        ours._confidence_probs = theirs._confidence_probs = torch.rand(size)
        theirs._batch_budget = (
            {name: len(places.get(name, ())) for name in batch},
            others,
            found,
        )
        order = rng.sample(batch, len(batch))
        indices = torch.tensor([states.req_id_to_index[name] for name in order])
        placed, expected = (
            each.reallocate_drafts(order, indices) for each in (ours, theirs)
        )
        assert [one.tolist() for one in placed[:2]] == [
            one.tolist() for one in expected[:2]
        ]
        assert placed[2:] == ((found, None) if since_033 else (found,))
        before = offered
