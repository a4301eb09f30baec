"""Drafts that the grammars see when they are proposed, and forced text as drafts, in
vLLM's V2 runner.

Every output is compared with that of a loop without drafts.
"""

import logging
import os
import random
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive
from vllm_games import played
from vllm_proposals import V2ProposeGame
from vllm_support import runner_config, told

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm import failures, hold, jump

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

DRAFTS = 7
GUIDED = told(gp.OutputSpec.choice(["a"]))


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
    assert game.taken > 50
    assert game.offered > 0


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
    assert 0 < worker.answer < 1


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


def configured(
    given,
    *,
    v2=True,
    device="cuda",
    nodes=1,
    sharded=None,
    error=None,
    limited=True,
):
    """The configurations that vLLM is asked to make of these arguments: the last one is
    the engine's. `limited`: vLLM keeps the list of drafts by size."""
    asked = []

    def create(arguments):
        asked.append(arguments)
        if error is not None and arguments.speculative_config is not None:
            raise ValueError(error)
        listed = (arguments.speculative_config or {}).get(
            "num_speculative_tokens_per_batch_size"
        )
        return SimpleNamespace(
            use_v2_model_runner=v2,
            speculative_config=SimpleNamespace(
                num_speculative_tokens_per_batch_size=listed if limited else None
            ),
            device_config=SimpleNamespace(device_type=device),
            parallel_config=SimpleNamespace(
                nnodes=nodes, enable_batch_sharded_sampling=sharded
            ),
        )

    jump.create_engine_config(create)(given)
    return asked


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


@pytest.mark.parametrize(
    ("options", "count", "most"),
    [({}, 7, 128), ({"jump_rows": 4}, 7, 4), ({"jump_drafts": 3}, 3, 128)],
)
def test_an_engine_without_a_drafter_gets_one_but_for_batches_above_a_size(
    caplog, options, count, most
):
    more = {"guided_plugin": {"jump_forward": True, **options}}
    (made,) = configured(arguments(additional_config=more))
    assert made.additional_config["guided_plugin_jump"]
    given = made.speculative_config
    assert given["num_speculative_tokens"] == count
    listed = given["num_speculative_tokens_per_batch_size"]
    for size in (3, 300):
        lookup = build_dynamic_sd_schedule_lookup(listed, size, count)
        drafts = [count if rows <= most else 0 for rows in range(1, size + 1)]
        assert lookup[1:] == drafts
    (line,) = caplog.messages
    assert f"in batches of at most {most} requests (jump_rows)" in line


def test_where_vllm_drops_the_limit_the_line_says_so(caplog):
    configured(arguments(), limited=False)
    assert "in batches of any size: vLLM sets no limit" in caplog.text


def scheduler(**additional):
    """As much of vLLM's as the list of drafts is looked up in."""
    config = SimpleNamespace(additional_config=additional)
    return SimpleNamespace(dynamic_sd_lookup=[0, 7, 7, 0], vllm_config=config)


class Request(SimpleNamespace):
    """vLLM's, as far as `Scheduler.add_request` is wrapped for it."""

    def __init__(self, name, **extra):
        params = SimpleNamespace(extra_args=extra)
        super().__init__(request_id=name, sampling_params=params)
        self.structured_output_request = hold.Held(self, extra.get("guided"))


def test_steps_have_drafts_while_guided_requests_are_there():
    own = scheduler(guided_plugin_jump=True)
    there = {}
    add = failures.add_request(
        lambda scheduler, request: there.update({request.request_id: request})
    )

    def drafts():
        return [own.dynamic_sd_lookup[rows] for rows in range(1, 4)]

    add(own, Request("free"))
    assert drafts() == [0, 0, 0]
    for name in ("a", "b"):
        add(own, Request(name, **GUIDED))
    add(own, Request("more"))
    assert drafts() == [7, 7, 0]
    del there["a"]
    assert drafts() == [7, 7, 0]
    del there["b"]
    assert drafts() == [0, 0, 0]
    add(own, Request("c", **GUIDED))
    assert drafts() == [7, 7, 0]
    # those of another speculative config are its own
    other = scheduler()
    for lookup in (other.dynamic_sd_lookup, None):
        other.dynamic_sd_lookup = lookup
        add(other, Request("a", **GUIDED))
        assert other.dynamic_sd_lookup is lookup


def states_of(names):
    """vLLM's states of these requests, every second of which has a longer prompt."""
    states = SimpleNamespace(max_num_reqs=len(names), device=torch.device("cpu"))
    states.req_id_to_index = {name: at for at, name in enumerate(reversed(names))}
    states.num_computed_tokens_np = np.full(len(names), 5)
    states.prefill_len = SimpleNamespace(np=np.array([5, 8] * (len(names) // 2)))
    return states


def manager_of(states, since_033=False, **additional):
    """vLLM's `AdaptiveVerificationManager`, made for such an engine."""
    requests = states.max_num_reqs
    made = object.__new__(adaptive.AdaptiveVerificationManager)
    made.num_speculative_steps = DRAFTS
    made.num_bonus_tokens = 1
    made._max_total_logits = 180
    (
        made.query_start_loc,
        made._cu_num_logits,
        made._num_non_draft_tokens,
        made._batch_draft_capacity,
    ) = (torch.full((requests + 1,), -7, dtype=torch.int32) for _ in range(4))
    made._confidence_probs = torch.zeros(requests, DRAFTS)
    made._stale_idx = 0
    made._stale_confidences = [
        CpuGpuBuffer(requests, DRAFTS, dtype=torch.float32, device="cpu") for _ in "12"
    ]
    made._copy_events = [Mock(), Mock()]
    made.cost_tables = np.full(requests + 1, 0.5), 6.6 + 0.05 * np.arange(1000)
    made.req_states = states
    if since_033:
        made._copy_admitted_drafts_to_host = False
    config = SimpleNamespace(additional_config=additional)
    create = jump.maybe_create_adaptive_verification_manager(lambda **_: made)
    assert create(req_states=states, vllm_config=config) is made
    return made


@pytest.mark.parametrize("since_033", [False, True])
def test_drafts_are_placed_where_vllm_places_them_as_many_as_pay(
    monkeypatch, since_033
):
    monkeypatch.setattr(
        adaptive,
        "_assign_draft_token_budget_compiled",
        adaptive._assign_draft_token_budget,
    )
    requests, drafts = size = 40, DRAFTS
    rng = random.Random(1)
    _ = torch.manual_seed(1)
    names = [*map(str, range(requests))]
    states = states_of(names)
    ours = manager_of(states, since_033, guided_plugin_jump=True)
    theirs = manager_of(states, since_033)
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
