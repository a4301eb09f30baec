"""Both of vLLM's model runners, played with its own types: rows that move, prompts in chunks, preemption.

Every guided output is checked with a fresh matcher, and every unguided row against what it was.
"""

import os
import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm_games import SPECS, Request, V1Game, V2DraftGame, V2Game
from vllm_support import END, WIDTH, parallel, runner_config, runner_params

import guided_plugin as gp
from guided_plugin.hosts.vllm.failures import FAILED
from guided_plugin.step import UNGUIDED
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


@pytest.mark.parametrize("placeholders", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_v1_rows_move_come_and_go(seed, placeholders):
    guide = GuidedLogitsProcessor(runner_config(), torch.device("cpu"), False)
    game = V1Game(guide, seed, placeholders=placeholders)
    for _ in range(250):
        game.step()
    game.finish()
    assert sum(request.spec is not None and request.over for request in game.done) > 20
    assert guide.runner.engine.pipeline.metrics().failed == 0


def test_v1_with_a_grammar_worker():
    guide = GuidedLogitsProcessor(runner_config("process"), torch.device("cpu"), False)
    game = V1Game(guide, 9, placeholders=True)
    for _ in range(250):
        game.step()
    game.finish()
    pipeline = guide.runner.engine.pipeline
    assert pipeline.metrics().failed == 0
    assert pipeline.mode == "process"
    assert pipeline.metrics().added > 20
    guide.runner.engine.close()


def test_v1_output_that_is_cut_back_starts_again():
    guide = GuidedLogitsProcessor(runner_config(), torch.device("cpu"), False)
    spec = gp.OutputSpec.regex("abcdefgh")
    output = []
    guide.update_state(BatchUpdate(1, [], [(0, runner_params(spec), [1], output)], []))
    for step in range(14):
        logits = torch.zeros(1, WIDTH)
        token = int(guide.apply(logits).argmax())
        guide.runner.sampled(torch.tensor([[token]], dtype=torch.int32))
        output.append(token)
        if step == 5:
            del output[2:]
        guide.update_state(None)
    assert bytes(output[:8]) == b"abcdefgh"
    assert output[8] == END


def test_v1_an_unguided_batch_is_left_alone():
    guide = GuidedLogitsProcessor(runner_config(), torch.device("cpu"), False)
    guide.update_state(
        BatchUpdate(2, [], [(0, SamplingParams(), [1], []), (1, SamplingParams(), [1], [])], [])
    )
    logits = torch.randn(2, WIDTH)
    assert guide.apply(logits) is logits
    assert guide.runner.engine.pipeline.metrics().steps == 0


@pytest.mark.parametrize("seed", range(6))
def test_v2_indices_are_used_again_and_batches_skip_requests(seed):
    game = V2Game(runner_config(), seed)
    for _ in range(250):
        game.step()
    game.finish()
    assert sum(request.spec is not None and request.over for request in game.done) > 20
    assert game.guide.runner.engine.pipeline.metrics().failed == 0


def test_v2_with_a_grammar_worker():
    game = V2Game(runner_config("process"), 11)
    for _ in range(250):
        game.step()
    game.finish()
    assert game.guide.runner.engine.pipeline.metrics().failed == 0
    game.guide.runner.engine.close()


@pytest.mark.parametrize("seed", range(5))
def test_v2_drafts_are_judged_by_the_grammar(seed):
    game = V2DraftGame(runner_config(), seed)
    for _ in range(150):
        game.step()
    game.finish()
    assert game.taken > 100
    assert sum(request.spec is not None and request.over for request in game.done) > 20
    assert game.guide.runner.engine.pipeline.metrics().failed == 0


def test_v2_drafts_with_a_grammar_worker():
    game = V2DraftGame(runner_config("process"), 12)
    for _ in range(200):
        game.step()
    game.finish()
    metrics = game.guide.runner.engine.pipeline.metrics()
    assert game.taken > 100
    assert metrics.failed == 0
    assert metrics.worker.steps > 50
    game.guide.runner.engine.close()


def test_v2_drafts_go_on_when_the_grammar_worker_is_killed():
    game = V2DraftGame(runner_config("process"), 13)
    pipeline = game.guide.runner.engine.pipeline
    for step in range(120):
        if step in (30, 80):
            pid = pipeline.runtime.supervisor.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        game.step()
    game.finish()
    metrics = pipeline.metrics()
    assert metrics.worker.restarts == 2
    assert metrics.failed == 0
    assert game.taken > 50
    game.guide.runner.engine.close()


def test_v2_drafts_close_what_cannot_be_guided():
    game = V2DraftGame(runner_config(), 0)
    closed, fine = Request(0, random.Random(1)), Request(1, random.Random(1))
    closed.spec = fine.spec = SPECS[0]
    closed.params, fine.params = (
        runner_params(gp.OutputSpec.regex("(?=a)b")),
        runner_params(SPECS[0], min_tokens=9),
    )
    for request in (closed, fine):
        request.prompt = [1]
        game.enter(request)
    game.guide.apply_staged_writes()
    (bad, good) = game.running
    rows = [(bad, 0), (bad, 1), (good, 0), (good, 1), (good, 2)]
    context = LogitsContext(
        expanded_idx_mapping=torch.tensor([index for index, _ in rows], dtype=torch.int32),
        idx_mapping=torch.tensor([bad, good]),
        idx_mapping_np=np.array([bad, good], np.int32),
        expanded_local_pos=torch.tensor([position for _, position in rows], dtype=torch.int32),
        input_ids=torch.tensor([1, 97, 1, 97, ord("x")], dtype=torch.int32),
        pos=None,
        seq_lens_upper_bound_np=None,
    )
    logits = torch.zeros(5, WIDTH)
    logits[:, END] = -torch.inf  # as min_tokens does
    masked = game.guide.apply(logits, context)
    allowed = [row.isfinite().nonzero().view(-1).tolist() for row in masked]
    assert allowed == [[END], [END], [97, 98, 99], [97, 98, 99], [END]]


def v1(vllm_config, *params):
    guide = GuidedLogitsProcessor(vllm_config, torch.device("cpu"), False)
    added = [(at, one, [1], []) for at, one in enumerate(params)]
    guide.update_state(BatchUpdate(len(added), [], added, []))
    return guide


def test_loaded_twice_the_second_does_nothing():
    shared = runner_config()
    first = GuidedLogitsProcessor(shared, torch.device("cpu"), False)
    second = GuidedLogitsProcessor(shared, torch.device("cpu"), False)
    assert first.runner is not None
    assert second.runner is None
    logits = torch.randn(1, WIDTH)
    assert second.apply(logits) is logits
    assert second.add_request(0, runner_params(SPECS[0])) is False
    second.update_state(None)
    second.apply_staged_writes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"enabled": False}, "switched off"),
        ({"speculative_config": SimpleNamespace()}, "V1 model runner"),
        ({"parallel_config": parallel(prefill_context_parallel_size=2)}, "prefill context"),
    ],
)
def test_an_engine_that_cannot_guide_closes_what_reaches_it(change, says, caplog):
    vllm_config = runner_config(**({"enabled": False} if "enabled" in change else {}))
    vllm_config.__dict__.update(change)
    guide = v1(vllm_config, runner_params(SPECS[0]), runner_params(None))
    logits = torch.randn(2, WIDTH)
    before = logits.clone()
    masked = guide.apply(logits)
    assert masked[0].isfinite().nonzero().tolist() == [[END]]
    assert torch.equal(masked[1], before[1])
    output = ModelRunnerOutput(["a"], {"a": 0}, sampled_token_ids=[[END]])
    assert says in str(getattr(guide.runner.engine.watch(output), FAILED))
    assert says in caplog.text


@pytest.mark.parametrize("kind", [V2Game, V2DraftGame])
def test_so_does_one_of_a_v2_runner(kind):
    game = kind(runner_config(enabled=False), 0)
    request = Request(0, random.Random(1))
    request.spec = SPECS[0]
    request.params, request.prompt = runner_params(SPECS[0], min_tokens=2), [1]
    game.enter(request)
    game.guide.apply_staged_writes()
    indices = torch.tensor(list(game.running))
    none = torch.zeros(1, dtype=torch.int32)
    context = LogitsContext(indices, indices, indices.numpy(), none, none, None, None)
    masked = game.guide.apply(torch.zeros(1, WIDTH), context)
    assert masked[0].isfinite().nonzero().tolist() == [[END]]


def test_a_spec_that_does_not_compile_is_closed_too():
    guide = v1(runner_config(), runner_params(gp.OutputSpec.regex("(?=a)b")), runner_params(SPECS[0]))
    masked = guide.apply(torch.randn(2, WIDTH))
    assert masked[0].isfinite().nonzero().tolist() == [[END]]
    assert masked[1].isfinite().sum() == 3


def test_a_row_that_vllm_leaves_nothing_of_keeps_its_stop_token():
    """`min_tokens` forbids the end, and the grammar everything else."""
    guide = v1(
        runner_config(),
        runner_params(gp.OutputSpec.choice(["a"]), min_tokens=9),
        runner_params(SPECS[0], min_tokens=9),
    )
    output = guide.runner._rows
    logits = torch.zeros(2, WIDTH)
    logits[:, END] = -torch.inf
    first = guide.apply(logits).argmax(-1)
    assert first[0] == ord("a")
    guide.runner.sampled(first.view(-1, 1).to(torch.int32))
    for row in output.values():
        row.output.append(-1)
    guide.update_state(None)
    logits = torch.zeros(2, WIDTH)
    logits[:, END] = -torch.inf
    masked = guide.apply(logits)
    assert masked[0].isfinite().nonzero().tolist() == [[END]]
    assert not masked[1, END].isfinite()


def test_stop_tokens_of_the_request_end_its_grammar():
    params = runner_params(SPECS[2])
    params._all_stop_token_ids = {END, ord("z")}
    guide = v1(runner_config(), params)
    spec = guide.runner.engine.pipeline._requests[0].spec
    assert spec.stop_token_ids == (END,)  # "z" is text: it ends the output, not the grammar
    assert guide.runner._rows[0].guided.slot != UNGUIDED


MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@pytest.mark.parametrize("mode", MODES)
def test_v1_logprobs_are_those_of_the_masked_distribution(mode):
    guide = v1(runner_config(), runner_params(SPECS[0], logprobs=3), runner_params(None, logprobs=3))
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
