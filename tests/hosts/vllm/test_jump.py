"""Drafts that the grammars see when they are proposed, and forced text as drafts, in
vLLM's V2 runner.

Every output is compared with that of a loop without drafts.
"""

import logging
import os
import random
import signal
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive
from vllm_games import played
from vllm_proposals import V2ProposeGame
from vllm_support import runner_config, told

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm import failures, hold, jump

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

GUIDED = told(gp.OutputSpec.choice(["a"]))


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("mode", "jumps"), [("inline", False), ("process", False), ("process", True)]
)
def test_drafts_of_others_with_masks_along_them_or_forced_text_in_their_place(
    mode, jumps, seed, drawn
):
    game = V2ProposeGame(
        runner_config(mode, jump_forward=jumps),
        seed,
        drawn=drawn,
    )
    played(game, 200)
    assert game.taken > 50


@pytest.mark.parametrize(("seed", "kills"), [(1, ()), (2, ()), (3, ()), (1, (30, 80))])
def test_forced_text_as_drafts(monkeypatch, seed, kills):
    """Proposals alone tell the worker that there is time, and how much; outputs stay the
    same when it is killed."""
    game = V2ProposeGame(
        runner_config("process", jump_forward=True),
        seed,
        own=True,
    )
    runtime = game.guide.runner.engine.pipeline.runtime
    plan = Mock(side_effect=runtime.plan)
    monkeypatch.setattr(
        runtime,
        "plan",
        plan,
    )
    steps = 150

    def kill(step):
        if step in kills:
            os.kill(runtime.supervisor.worker_pid, signal.SIGKILL)

    worker = played(
        game,
        steps,
        kill,
    ).worker
    assert worker.restarts == len(kills)
    assert 50 < game.taken <= game.offered
    assert 0 < worker.taken <= worker.offered
    assert worker.forwards > 100
    assert 0 < worker.answer < 1
    said = [call.kwargs["offers"] for call in plan.call_args_list]
    # of requests that enter; where no drafts are asked for; else
    assert set(said) == {None, False, True}
    assert sum(one is not None for one in said) <= steps


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

    jump.create_engine_config(given, original=create)
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
        lookup = build_dynamic_sd_schedule_lookup(
            listed,
            size,
            count,
        )
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
    add = partial(
        failures.add_request,
        original=lambda one, request: there.update({request.request_id: request}),
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


REQUESTS = 40
DRAFTS = 7
LOGITS = 60
"""Of a step, at most."""
COSTS = 0.5 * np.arange(REQUESTS + 1), 6.6 + 0.05 * np.arange(1000)


@pytest.fixture(params=[False, True], ids=["", "since 0.33"])
def managers(request, monkeypatch):
    """vLLM's `AdaptiveVerificationManager` with what places drafts here, and as it
    is."""
    for name in ("Stream", "Event"):
        monkeypatch.setattr(
            torch.cuda,
            name,
            Mock,
        )
    rank = adaptive._assign_draft_token_budget
    monkeypatch.setattr(
        adaptive,
        "_assign_draft_token_budget_compiled",
        rank,
    )
    # every second request has a longer prompt
    states = SimpleNamespace(
        max_num_reqs=REQUESTS,
        num_speculative_steps=DRAFTS,
        device=torch.device("cpu"),
        req_id_to_index={str(at): REQUESTS - 1 - at for at in range(REQUESTS)},
        num_computed_tokens_np=np.full(REQUESTS, 5),
        prefill_len=SimpleNamespace(np=np.array([5, 8] * (REQUESTS // 2))),
    )
    made = []
    for own in (True, False):
        starts = torch.zeros(REQUESTS + 1, dtype=torch.int32)
        one = adaptive.AdaptiveVerificationManager(
            states,
            starts,
            1,
            LOGITS,
        )
        one.cost_tables = COSTS
        if request.param:
            one._copy_admitted_drafts_to_host = False
        config = SimpleNamespace(additional_config={"guided_plugin_jump": own})
        made.append(
            jump.maybe_create_adaptive_verification_manager(
                original=lambda one=one, **_: one,
                req_states=states,
                vllm_config=config,
            )
        )
    return made


def worth_of(requests, samples, least, most, counts):
    """The tokens a millisecond of 0 to `most` drafts. `counts`: how many there were
    lately."""
    budgets = np.arange(most + 1)
    drafting, verifying = COSTS
    tokens = samples + np.minimum(counts[:, None], budgets).mean(axis=0)
    return tokens / (drafting[requests] + verifying[least + budgets])


def test_drafts_are_placed_where_vllm_places_them_as_many_as_pay(managers):
    ours, theirs = managers
    states = ours.req_states
    rng = random.Random(1)
    _ = torch.manual_seed(1)
    size = REQUESTS, DRAFTS
    lately = [1.0] * jump._LATELY
    before = torch.ones(size)
    for at in range(100):
        # What was offered in this step is on the host a step later.
        offered = torch.rand(size) * (torch.rand(REQUESTS, 1) < 0.4)
        ours.record_confidences(offered, None)
        ours._copy_events[1 - at % 2].synchronize.assert_called_with()
        ours._copy_events[at % 2].record.assert_called_with()
        batch = rng.sample([*states.req_id_to_index], rng.randint(1, REQUESTS))
        places = {
            name: ["?"] * rng.choice([1, DRAFTS])
            for name in batch
            if name == batch[0] or rng.random() < 0.9
        }
        others = {name: rng.randint(1, 7) for name in batch}
        tokens = {name: others[name] + len(places.get(name, ())) for name in batch}
        rows = [states.req_id_to_index[name] for name in places]
        lately = [*lately[1:], (before[rows] > 0).sum().item() / len(rows)]
        drafts = sum(map(len, places.values()))
        least = sum(others.values())
        ended = [others[one] >= 3 * (states.req_id_to_index[one] % 2) for one in batch]
        counts = np.ceil(np.array(lately) * len(rows) - 1e-9)
        most = min(drafts, LOGITS - len(batch))
        worth = worth_of(
            len(batch),
            sum(ended),
            least,
            most,
            counts,
        )
        found = ours.get_num_tokens(tokens, places) - least
        # counts are fractions of those of other batches
        assert worth[found] == pytest.approx(max(worth), rel=1e-3)
        # no two alike
        ours._confidence_probs = theirs._confidence_probs = torch.rand(size)
        theirs.get_num_tokens(tokens, places)
        theirs._batch_budget = *theirs._batch_budget[:2], found
        order = rng.sample(batch, len(batch))
        indices = torch.tensor([states.req_id_to_index[name] for name in order])
        *placed, count = ours.reallocate_drafts(order, indices)[:3]
        expected = theirs.reallocate_drafts(order, indices)
        assert count == found
        assert all(
            map(
                torch.equal,
                placed,
                expected,
            )
        )
        before = offered
