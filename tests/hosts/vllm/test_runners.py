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
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm_support import END, VOCABULARY, WIDTH, runner_config, runner_params, v2_states

import guided_plugin as gp
from guided_plugin.step import UNGUIDED
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

SPECS = [
    gp.OutputSpec.regex("[a-c]{3,20}"),
    gp.OutputSpec.json_schema(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    ),
    gp.OutputSpec.choice(["yes", "no", "perhaps"]),
    None,
    gp.OutputSpec.json_schema({"type": "string", "maxLength": 6}),
]
COMPILER = gp.GrammarCompiler(VOCABULARY, config=gp.GuidedConfig(threads=1, isolate_compiles=False))


def assert_allowed(spec, tokens):
    """A fresh matcher takes all of it."""
    grammar = COMPILER.compile(spec)
    matcher = COMPILER.backend(grammar.backend).start(grammar, (END,))
    assert all(matcher.accept(token) for token in tokens), (spec.summary(), tokens)


class Request:
    """One request of either game."""

    def __init__(self, number, rng, **options):
        self.number = number
        self.spec = rng.choice(SPECS)
        self.params = runner_params(self.spec, **options)
        self.prompt = [rng.randrange(256) for _ in range(rng.choice([1, 3, 9]))]
        self.tokens = []
        self.computed = 0
        self.listed = []
        """V1: the list that vLLM shows."""

    @property
    def over(self):
        return self.tokens[-1:] == [END] or len(self.tokens) >= 25

    def check(self):
        if self.spec is not None:
            assert_allowed(self.spec, self.tokens)


class V1Game:
    """A persistent batch as the V1 runner keeps it."""

    def __init__(self, guide, seed, *, placeholders):
        self.guide, self.rng, self.placeholders = guide, random.Random(seed), placeholders
        self.generator = torch.Generator().manual_seed(seed)
        self.rows, self.waiting, self.done = [], [], []
        self.count = 0

    def step(self):
        rng = self.rng
        removed = [at for at, request in enumerate(self.rows) if request.over or rng.random() < 0.04]
        added, moved = [], []
        for at in removed:
            request = self.rows[at]
            if request.over or rng.random() < 0.3:  # finished or aborted
                self.done.append(request)
            else:  # preempted: all is computed again, or skipped for a while
                request.computed = 0
                self.waiting.append(request)
        empty = sorted(removed)
        came = []
        for _ in range(rng.choice([0, 0, 1, 2])):
            if self.waiting and rng.random() < 0.5:
                came.append(self.waiting.pop(0))
            elif len(self.rows) - len(empty) + len(came) < 8:
                self.count += 1
                came.append(Request(self.count, rng))
        left = list(empty)
        for request in came:
            if len(self.rows) - len(left) >= 8:
                self.waiting.append(request)
                continue
            if self.placeholders:
                request.listed = list(request.tokens)  # vLLM makes a new list of the tokens themselves
            at = left.pop(0) if left else len(self.rows)
            if at == len(self.rows):
                self.rows.append(request)
            self.rows[at] = request
            added.append((at, request.params, request.prompt, request.listed))
        still_removed = sorted(left, reverse=True)
        for at in left:  # condense: the last row moves into the gap
            while len(self.rows) - 1 in left and len(self.rows) - 1 > at:
                left.remove(len(self.rows) - 1)
                self.rows.pop()
            if at >= len(self.rows) - 1:
                del self.rows[at:]
                break
            moved.append((len(self.rows) - 1, at, MoveDirectionality.UNIDIRECTIONAL))
            self.rows[at] = self.rows.pop()
        if len(self.rows) > 1 and rng.random() < 0.1:
            a, b = rng.sample(range(len(self.rows)), 2)
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
            moved.append((a, b, MoveDirectionality.SWAP))
        changed = still_removed or added or moved
        update = BatchUpdate(len(self.rows), still_removed, added, moved) if changed else None
        self.guide.update_state(update)
        if not self.rows or rng.random() < 0.03:
            return  # nothing was scheduled after all
        logits = torch.randn(len(self.rows), WIDTH, generator=self.generator)
        before = logits.clone()
        masked = self.guide.apply(logits)
        for at, request in enumerate(self.rows):
            if request.spec is None:
                assert torch.equal(masked[at], before[at])
        sampled = masked.argmax(-1).to(torch.int32)
        self.guide.runner.sampled(sampled.view(-1, 1))
        for request, token in zip(self.rows, sampled.tolist(), strict=True):
            request.computed += rng.choice([2, 100]) if request.computed < len(request.prompt) else 1
            if request.computed >= len(request.prompt):
                request.tokens.append(token)
                request.listed.append(-1 if self.placeholders else token)

    def finish(self):
        for request in [*self.rows, *self.waiting, *self.done]:
            request.check()


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


def test_v1_with_a_grammar_worker(fork_server):
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


class V2Game:
    """The tables of a V2 runner: requests at indices that are used again, batches in any order."""

    def __init__(self, vllm_config, seed):
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.total = torch.zeros(8, dtype=torch.int32)
        self.tokens = torch.zeros(8, 64, dtype=torch.int32)
        self.prompt_len, self.prefill_len = np.zeros(8, np.int32), np.zeros(8, np.int32)
        states = v2_states(self.tokens, self.prompt_len, self.prefill_len, self.total)
        self.guide = GuidedLogitsProcessor(vllm_config, states)
        self.running, self.waiting, self.done, self.free = {}, [], [], list(range(8))
        self.count = 0
        self.processed = {}

    def enter(self, request):
        index = self.free.pop()
        self.running[index] = request
        fed = request.prompt + request.tokens
        request.computed = 0
        self.prompt_len[index], self.prefill_len[index] = len(request.prompt), len(fed)
        self.total[index] = len(fed)
        self.tokens[index, : len(fed)] = torch.tensor(fed, dtype=torch.int32)
        self.processed[index] = self.guide.add_request(index, request.params)
        assert self.processed[index] == (request.spec is not None)

    def step(self):
        rng = self.rng
        for index, request in list(self.running.items()):
            if request.over or rng.random() < 0.04:
                del self.running[index]
                self.free.append(index)
                (self.done if request.over or rng.random() < 0.3 else self.waiting).append(request)
        for _ in range(rng.choice([0, 0, 1, 2])):
            if not self.free:
                break
            if self.waiting and rng.random() < 0.5:
                self.enter(self.waiting.pop(0))
            else:
                self.count += 1
                self.enter(Request(self.count, rng))
        self.guide.apply_staged_writes()
        batch = [index for index in self.running if rng.random() < 0.93]  # some skip a step
        rng.shuffle(batch)
        if batch:
            self.decode(batch)

    def decode(self, batch):
        rng = self.rng
        logits = torch.randn(len(batch), WIDTH, generator=self.generator)
        before = logits.clone()
        mapping = torch.tensor(batch)
        if any(self.processed[index] for index in batch):
            context = LogitsContext(mapping, mapping, mapping.numpy(), *[None] * 4)
            logits = self.guide.apply(logits, context)
        sampled = logits.argmax(-1).tolist()
        for row, index in enumerate(batch):
            request = self.running[index]
            if request.spec is None:
                assert torch.equal(logits[row], before[row])
            request.computed += rng.choice([2, 100]) if request.computed < self.prefill_len[index] else 1
            if request.computed >= self.prefill_len[index]:
                request.tokens.append(sampled[row])
                self.tokens[index, self.total[index]] = sampled[row]
                self.total[index] += 1

    def finish(self):
        for request in [*self.running.values(), *self.waiting, *self.done]:
            request.check()


@pytest.mark.parametrize("seed", range(6))
def test_v2_indices_are_used_again_and_batches_skip_requests(seed):
    game = V2Game(runner_config(), seed)
    for _ in range(250):
        game.step()
    game.finish()
    assert sum(request.spec is not None and request.over for request in game.done) > 20
    assert game.guide.runner.engine.pipeline.metrics().failed == 0


def test_v2_with_a_grammar_worker(fork_server):
    game = V2Game(runner_config("process"), 11)
    for _ in range(250):
        game.step()
    game.finish()
    assert game.guide.runner.engine.pipeline.metrics().failed == 0
    game.guide.runner.engine.close()


DRAFTS = 3


class V2DraftGame(V2Game):
    """The same where requests draft: some rows each, judged as vLLM's rejection sampler does, in parts."""

    def __init__(self, vllm_config, seed):
        vllm_config.speculative_config = SimpleNamespace(
            num_speculative_tokens=DRAFTS, rejection_sample_method="standard"
        )
        vllm_config.use_v2_model_runner = True
        super().__init__(vllm_config, seed)
        self.taken = 0
        """Drafts that were taken."""

    def decode(self, batch):
        parts = [batch] if self.rng.random() < 0.7 else [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
        drafts = {index: self.draft(self.running[index]) for index in batch}
        for part in parts:
            if part:
                self.judge(part, drafts)

    def draft(self, request):
        """Some tokens that fit, often; some that don't."""
        if not request.tokens:
            return []
        tokens = []
        if request.spec is not None and self.rng.random() < 0.8:
            grammar = COMPILER.compile(request.spec)
            backend = COMPILER.backend(grammar.backend)
            matcher = backend.start(grammar, (END,))
            for token in request.tokens:
                matcher.accept(token)
            mask = np.zeros((1, VOCABULARY.words), np.int32)
            while len(tokens) < DRAFTS and END not in tokens:
                backend.batch([matcher]).fill(mask, [0])
                fits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                tokens.append(self.rng.choice(fits.tolist()))
                matcher.accept(tokens[-1])
        tokens += [self.rng.randrange(END + 1) for _ in range(DRAFTS - len(tokens))]
        return tokens[: self.rng.randrange(DRAFTS + 1)]

    def judge(self, batch, drafts):
        rows = [(index, position) for index in batch for position in range(len(drafts[index]) + 1)]
        fed = [([0, *drafts[index]])[position] for index, position in rows]
        logits = torch.randn(len(rows), WIDTH, generator=self.generator)
        before = logits.clone()
        if any(self.processed[index] for index in batch):
            context = LogitsContext(
                expanded_idx_mapping=torch.tensor([index for index, _ in rows], dtype=torch.int32),
                idx_mapping=torch.tensor(batch, dtype=torch.int32),
                idx_mapping_np=np.array(batch, np.int32),
                expanded_local_pos=torch.tensor([position for _, position in rows], dtype=torch.int32),
                input_ids=torch.tensor(fed, dtype=torch.int32),
                pos=None,
                seq_lens_upper_bound_np=None,
            )
            logits = self.guide.apply(logits, context)
        at = 0
        for index in batch:
            request, own = self.running[index], drafts[index]
            mine = logits[at : at + len(own) + 1]
            if request.spec is None:
                assert torch.equal(mine, before[at : at + len(own) + 1])
            at += len(own) + 1
            request.computed += 100
            new = []
            for position, draft in enumerate(own):
                if not mine[position, draft].isfinite() or self.rng.random() < 0.3:
                    break
                new.append(draft)
                self.taken += 1
            new.append(int(mine[len(new)].argmax()))
            request.tokens += new
            if END in request.tokens:  # vLLM cuts what comes after a stop token
                del request.tokens[request.tokens.index(END) + 1 :]
            self.tokens[index, self.total[index] : self.total[index] + len(new)] = torch.tensor(new).int()
            self.total[index] += len(new)


@pytest.mark.parametrize("seed", range(5))
def test_v2_drafts_are_judged_by_the_grammar(seed):
    game = V2DraftGame(runner_config(), seed)
    for _ in range(150):
        game.step()
    game.finish()
    assert game.taken > 100
    assert sum(request.spec is not None and request.over for request in game.done) > 20
    assert game.guide.runner.engine.pipeline.metrics().failed == 0


def test_v2_drafts_with_a_grammar_worker(fork_server):
    game = V2DraftGame(runner_config("process"), 12)
    for _ in range(200):
        game.step()
    game.finish()
    metrics = game.guide.runner.engine.pipeline.metrics()
    assert game.taken > 100
    assert metrics.failed == 0
    assert metrics.worker.steps > 50
    game.guide.runner.engine.close()


def test_v2_drafts_go_on_when_the_grammar_worker_is_killed(fork_server):
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
        ({"parallel_config": SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1)}, "one GPU"),
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
    assert says in caplog.text


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
