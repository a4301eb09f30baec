"""Both of vLLM's model runners as games: rows that move, prompts in chunks, preemption.
Needs vLLM."""

import random
from types import SimpleNamespace

import numpy as np
import torch
from compilers import allowed, start
from torch.overrides import TorchFunctionMode
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm_support import END, VOCABULARY, WIDTH, runner_params, v2_context, v2_states

import guided_plugin as gp
from guided_plugin.vllm import GuidedLogitsProcessor

SPECS = [
    gp.OutputSpec.regex("[a-c]{3,20}"),
    gp.OutputSpec.json_schema(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    ),
    gp.OutputSpec.choice(["yes", "no", "perhaps"]),
    None,
    gp.OutputSpec.json_schema({"type": "string", "maxLength": 6}),
]


COMPILER = gp.GrammarCompiler(
    VOCABULARY, config=gp.GuidedConfig(threads=1, isolate_compiles=False)
)


def assert_allowed(spec, tokens):
    """A fresh matcher takes all of it."""
    taken = all(map(start(COMPILER, spec).accept, tokens))
    assert taken, (spec.summary(), tokens)


def played(game, steps, before=lambda step: None):
    """The pipeline's metrics after a game in which enough guided requests came to their
    end. `before` is called before each step."""
    with NothingWaits():
        for step in range(steps):
            before(step)
            game.step()
    game.finish()
    assert sum(request.spec is not None and request.over for request in game.done) > 20
    engine = game.guide.runner.engine
    metrics = engine.pipeline.metrics()
    assert metrics.failed == 0
    engine.close()
    return metrics


class NothingWaits(TorchFunctionMode):
    """Fails where a number is put by index. On a device this copies the number there
    and waits for it, so for the forward pass before: it cost 5 ms for each request that
    came."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__setitem__ and isinstance(args[1], torch.Tensor):
            assert isinstance(args[2], torch.Tensor), "use index_fill_"
        return func(*args, **(kwargs or {}))


class Request:
    """One request of either game."""

    limit = 25
    """Of its tokens."""
    start = 0
    """Where its constrained part begins."""
    reluctance = 0
    """How much less likely a stop token is than others."""

    def __init__(self, number, rng):
        self.number, self.name = number, str(number)
        self.spec = rng.choice(SPECS)
        self.params = runner_params(self.spec, None if self.spec is None else self.name)
        self.prompt = [rng.randrange(256) for _ in range(rng.choice([1, 3, 9]))]
        self.tokens = []
        self.computed = 0
        self.listed = []
        """V1: the list that vLLM shows."""

    @property
    def over(self):
        return self.tokens[-1:] == [END] or len(self.tokens) >= self.limit

    def check(self):
        if self.spec is not None:
            assert_allowed(self.spec, self.tokens)


class Game:
    """What both have."""

    kind = Request

    def __init__(self, guide, seed):
        self.guide = guide
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.preempted = []
        self.done = []
        self.count = 0

    def request(self):
        """A new one."""
        self.count += 1
        return self.kind(self.count, self.rng)

    def random_logits(self, rows):
        """What a model without any plan writes."""
        logits = torch.randn(
            rows,
            WIDTH,
            generator=self.generator,
        )
        logits[:, END] -= self.kind.reluctance
        return logits

    def finish(self):
        for request in [*self.there(), *self.preempted, *self.done]:
            request.check()


class V1Game(Game):
    """The batches that a V1 runner sees. It takes out what is not in a batch, preempted
    for one, and puts it back for its next step."""

    def __init__(self, guide, seed, *, placeholders=False):
        super().__init__(guide, seed)
        self.placeholders = placeholders
        self.running = []
        self.rows = []

    def there(self):
        return self.running

    def step(self):
        rng = self.rng
        before = list(self.running)
        for one in (self.running, self.preempted):
            for request in list(one):
                # finished, or aborted wherever it is
                if request.over or rng.random() < 0.02:
                    one.remove(request)
                    self.done.append(request)
                elif one is self.running and rng.random() < 0.03:
                    one.remove(request)
                    request.computed = 0
                    self.preempted.append(request)
        room = len(self.running) < 8
        if self.preempted and room and rng.random() < 0.3:
            request = self.preempted.pop(0)
            # a part of its cache could not be loaded
            if request.tokens and rng.random() < 0.3:
                del request.tokens[-1]
                del request.listed[-1]
            self.running.append(request)
        elif room and rng.random() < 0.7:
            self.running.append(self.request())
        # as `Worker.execute_model` shows it
        self.guide.runner.engine.left = {
            request.name for request in before if request not in self.running
        }
        self.decode([request for request in self.running if rng.random() < 0.95])

    def changed(self, batch):
        """The rows become those of a batch; what vLLM says of that."""
        rows = [request if request in batch else None for request in self.rows]
        free = [at for at, request in enumerate(rows) if request is None]
        added = []
        moved = []
        for request in batch:
            if request not in rows:
                if self.placeholders:
                    # vLLM makes a new list of the tokens themselves
                    request.listed = list(request.tokens)
                at = free.pop(0) if free else len(rows)
                rows[at : at + 1] = [request]
                added.append((at, request.params, request.prompt, request.listed))
        while None in rows:  # condense: the last row moves into the gap
            last = rows.pop()
            if last is not None:
                at = rows.index(None)
                rows[at] = last
                moved.append((len(rows), at, MoveDirectionality.UNIDIRECTIONAL))
        # a place that another takes is not listed
        removed = [at for at in free if at >= len(rows)]
        if len(rows) > 1 and self.rng.random() < 0.1:
            a, b = self.rng.sample(range(len(rows)), 2)
            rows[a], rows[b] = rows[b], rows[a]
            moved.append((a, b, MoveDirectionality.SWAP))
        self.rows = rows
        return (
            BatchUpdate(
                len(rows),
                removed,
                added,
                moved,
            )
            if removed or added or moved
            else None
        )

    def decode(self, batch):
        rng = self.rng
        self.guide.update_state(self.changed(batch))
        if not self.rows or rng.random() < 0.03:
            return  # nothing was scheduled after all
        logits = self.random_logits(len(self.rows))
        before = logits.clone()
        self.guide.runner.mask(logits)
        masked = self.guide.apply(logits.to(torch.float32))
        for at, request in enumerate(self.rows):
            if request.spec is None:
                assert torch.equal(masked[at], before[at])
        sampled = masked.argmax(-1).to(torch.int32)
        self.guide.runner.sampled(sampled.view(-1, 1))
        for request, token in zip(
            self.rows,
            sampled.tolist(),
            strict=True,
        ):
            request.computed += (
                rng.choice([2, 100]) if request.computed < len(request.prompt) else 1
            )
            if request.computed >= len(request.prompt):
                request.tokens.append(token)
                request.listed.append(-1 if self.placeholders else token)


class V2Game(Game):
    """The tables of a V2 runner: requests at indices that are used again, batches in
    any order."""

    def __init__(self, vllm_config, seed):
        self.total = torch.zeros(8, dtype=torch.int32)
        self.tokens = torch.zeros(
            8,
            64,
            dtype=torch.int32,
        )
        self.prompt_len, self.prefill_len = np.zeros(8, np.int32), np.zeros(8, np.int32)
        states = v2_states(
            self.tokens,
            self.prompt_len,
            self.prefill_len,
            self.total,
        )
        super().__init__(GuidedLogitsProcessor(vllm_config, states), seed)
        self.turn = 0
        self.turns = vllm_config.parallel_config.pipeline_parallel_size
        self.turn_of = {}
        """Whose turn each request is, by index: as many batches as a pipeline has
        stages."""
        self.running = {}
        self.free = list(range(8))
        self.processed = {}

    def there(self):
        return self.running.values()

    def enter(self, request):
        index = self.free.pop()
        self.running[index] = request
        self.turn_of[index] = self.turn % self.turns
        fed = request.prompt + request.tokens
        request.computed = 0
        self.prompt_len[index], self.prefill_len[index] = len(request.prompt), len(fed)
        self.total[index] = len(fed)
        self.tokens[index, : len(fed)] = torch.tensor(fed, dtype=torch.int32)
        assert not self.guide.add_request(index, request.params)
        # for a temperature, say
        self.processed[index] = self.rng.random() < 0.3

    def step(self):
        rng = self.rng
        engine = self.guide.runner.engine
        engine.left = set()
        for index, request in list(self.running.items()):
            if request.over or rng.random() < 0.04:
                over = request.over or rng.random() < 0.3
                # vLLM does not say so of a part of an input that is streamed
                if not over or rng.random() < 0.8:
                    engine.left.add(request.name)
                del self.running[index]
                self.free.append(index)
                (self.done if over else self.preempted).append(request)
        for _ in range(rng.choice([0, 0, 1, 2])):
            if not self.free:
                break
            if self.preempted and rng.random() < 0.5:
                self.enter(self.preempted.pop(0))
            else:
                self.enter(self.request())
        turn = self.turn % self.turns
        self.turn += 1
        batch = [
            index
            for index in self.running
            if self.turn_of[index] == turn and rng.random() < 0.93
        ]
        rng.shuffle(batch)
        # as `Worker.execute_model` shows it
        engine.scheduled = [self.running[index].name for index in batch]
        self.guide.apply_staged_writes()
        plan = self.guide.runner._plan
        guided = [one for one in batch if self.running[one].spec is not None]
        if plan is not None and guided:  # nothing is planned that skips the step
            slots = self.guide.runner.requests.slots[guided]
            assert sorted(plan.slots) == sorted(slots.tolist())
        if batch:
            self.decode(batch)
            engine.appended()

    def decode(self, batch):
        rng = self.rng
        logits = self.random_logits(len(batch))
        before = logits.clone()
        logits = self.apply(logits, v2_context(batch))
        sampled = logits.argmax(-1).tolist()
        for row, index in enumerate(batch):
            request = self.running[index]
            if request.spec is None:
                assert torch.equal(logits[row], before[row])
            request.computed += (
                rng.choice([2, 100])
                if request.computed < self.prefill_len[index]
                else 1
            )
            # the next part of a prompt waits for no turn
            if request.computed < self.prefill_len[index]:
                self.turn_of[index] = self.turn % self.turns
            else:
                request.tokens.append(sampled[row])
                self.tokens[index, self.total[index]] = sampled[row]
                self.total[index] += 1

    def apply(self, logits, context):
        """As the sampler does: what needs processing is copied."""
        self.guide.runner.mask(logits, context)
        if not any(self.processed[index] for index in context.idx_mapping_np.tolist()):
            return logits
        masked = self.guide.apply(logits.clone(), context)
        assert torch.equal(masked, logits)
        return masked


DRAFTS = 3


class V2DraftGame(V2Game):
    """The same where requests draft: some rows each, judged as vLLM's rejection sampler
    does, in parts."""

    def __init__(self, vllm_config, seed):
        vllm_config.speculative_config = SimpleNamespace(
            num_speculative_tokens=DRAFTS, rejection_sample_method="standard"
        )
        vllm_config.use_v2_model_runner = True
        super().__init__(vllm_config, seed)
        self.taken = 0
        """Drafts that were taken."""

    def decode(self, batch):
        drafts = {index: self.draft(self.running[index]) for index in batch}
        half = len(batch) // 2 if self.rng.random() < 0.3 else 0
        for part in filter(None, (batch[:half], batch[half:])):
            self.judge(part, drafts)

    def draft(self, request):
        """Some tokens that fit, often; some that don't."""
        if not request.tokens:
            return []
        tokens = []
        if request.spec is not None and self.rng.random() < 0.8:
            matcher = start(COMPILER, request.spec)
            for token in request.tokens[request.start :]:
                matcher.accept(token)
            while len(tokens) < DRAFTS and END not in tokens:
                tokens.append(self.rng.choice(allowed(matcher)))
                matcher.accept(tokens[-1])
        tokens += [self.rng.randrange(END + 1) for _ in range(DRAFTS - len(tokens))]
        return tokens[: self.rng.randrange(DRAFTS + 1)]

    def judge(self, batch, drafts):
        rows = [
            (index, position)
            for index in batch
            for position in range(len(drafts[index]) + 1)
        ]
        fed = [([0, *drafts[index]])[position] for index, position in rows]
        logits = self.logits(rows)
        before = logits.clone()
        context = v2_context(batch, rows, fed)
        logits = self.apply(logits, context)
        at = 0
        for index in batch:
            request = self.running[index]
            own = drafts[index]
            mine = logits[at : at + len(own) + 1]
            if request.spec is None:
                assert torch.equal(mine, before[at : at + len(own) + 1])
            at += len(own) + 1
            request.computed += 100
            new = []
            verified = context.input_ids[at - len(own) : at].tolist()
            for position, draft in enumerate(verified):
                if draft < 0 or not self.takes(draft, mine[position]):
                    break
                new.append(draft)
                self.taken += 1
            new.append(int(mine[len(new)].argmax()))
            request.tokens += new
            if END in request.tokens:  # vLLM cuts what comes after a stop token
                del request.tokens[request.tokens.index(END) + 1 :]
            self.tokens[index, self.total[index] : self.total[index] + len(new)] = (
                torch.tensor(new).int()
            )
            self.total[index] += len(new)

    def logits(self, rows):
        """Of an index and a position each."""
        return self.random_logits(len(rows))

    def takes(self, draft, logits):
        """Whether a draft is taken."""
        return bool(logits[draft] > -5) and self.rng.random() >= 0.3
