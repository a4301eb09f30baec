"""What vLLM's model runners do around the processor, with vLLM's own types and without
a model."""

from types import SimpleNamespace

import numpy as np
import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm_support import WIDTH, v2_context, v2_states

from guided_plugin.hosts.vllm.engine import sample_tokens
from guided_plugin.vllm import GuidedLogitsProcessor


class Async(AsyncModelRunnerOutput):
    """As vLLM's: the tokens are there when it is asked for."""

    def __init__(self, output):
        self.output = output

    def get_output(self):
        return self.output

    def get_kv_connector_output(self):
        return None


class Runner:
    """What a model runner does around the processor; `forbidden` is what vLLM's own
    options take away."""

    def __init__(self, vllm_config, names, params):
        self.names = names
        self.params = params
        self.forbidden = {}
        self.tokens = [[] for _ in names]
        self.start(vllm_config)
        self.engine = self.guide.runner.engine

    def output(self, sampled, *, later=False):
        index = {name: at for at, name in enumerate(self.names)}
        output = ModelRunnerOutput(
            list(self.names),
            index,
            sampled_token_ids=sampled,
        )
        worker = SimpleNamespace(vllm_config=self.engine.config)
        watched = sample_tokens(worker, original=lambda worker: Async(output))
        return watched if later else watched.get_output()

    def logits(self, rows):
        logits = torch.zeros(len(rows), WIDTH)
        for at, row in enumerate(rows):
            logits[at, self.forbidden.get(row, [])] = -torch.inf
        return logits

    def step(self, **options):
        sampled = self.sample()
        for tokens, new in zip(
            self.tokens,
            sampled,
            strict=True,
        ):
            tokens += new
        return self.output(sampled, **options)


class V1(Runner):
    def start(self, vllm_config):
        self.guide = GuidedLogitsProcessor(
            vllm_config,
            torch.device("cpu"),
            False,
        )
        self.update = BatchUpdate(
            len(self.names),
            [],
            [(at, one, [1], self.tokens[at]) for at, one in enumerate(self.params)],
            [],
        )

    def sample(self):
        self.guide.update_state(self.update)
        self.update = None
        logits = torch.zeros(len(self.names), WIDTH)
        if self.engine.unsupported_reason is None:
            self.guide.runner.mask(logits)
        logits += self.logits(range(len(self.names)))
        sampled = self.guide.apply(logits).argmax(-1)
        self.guide.runner.sampled(sampled.view(-1, 1).int())
        return [[token] for token in sampled.tolist()]


class V2(Runner):
    processed = False
    """Whether vLLM must call `apply`."""

    def start(self, vllm_config):
        self.total = torch.ones(8, dtype=torch.int32)
        self.history = torch.zeros(
            8,
            64,
            dtype=torch.int32,
        )
        self.prefilled = np.ones(8, np.int32)
        states = v2_states(
            self.history, np.ones(8, np.int32), self.prefilled, self.total
        )
        self.guide = GuidedLogitsProcessor(vllm_config, states)
        self.places = [5, 2, 7, 4][: len(self.names)]
        """The requests' indices."""
        for index, params in zip(
            self.places,
            self.params,
            strict=True,
        ):
            self.processed |= self.guide.add_request(index, params)

    def sample(self):
        self.guide.apply_staged_writes()
        logits = self.masked(range(len(self.names)), v2_context(self.places))
        return self.took([[token] for token in logits.argmax(-1).tolist()])

    def masked(self, rows, context):
        logits = torch.zeros(len(rows), WIDTH)
        if self.guide.runner.wrapped:
            self.guide.runner.mask(logits, context)
        logits += self.logits(rows)
        return self.guide.apply(logits, context) if self.processed else logits

    def took(self, sampled):
        for index, new in zip(
            self.places,
            sampled,
            strict=True,
        ):
            start = int(self.total[index])
            self.history[index, start : start + len(new)] = torch.tensor(
                new, dtype=torch.int32
            )
            self.total[index] += len(new)
        return sampled


class V2Drafts(V2):
    """Each request drafts "a"; what the masks leave is taken."""

    def start(self, vllm_config):
        vllm_config.speculative_config = SimpleNamespace(
            num_speculative_tokens=1, rejection_sample_method="standard"
        )
        vllm_config.use_v2_model_runner = True
        super().start(vllm_config)

    def sample(self):
        self.guide.apply_staged_writes()
        rows = [at for at in range(len(self.names)) for _ in range(2)]
        context = v2_context(
            self.places,
            [(index, position) for index in self.places for position in (0, 1)],
            [1, ord("a")] * len(self.names),
        )
        logits = self.masked(rows, context)
        first = logits[::2]
        second = logits[1::2]
        return self.took(
            [
                [ord("a"), int(second[at].argmax())]
                if first[at, ord("a")].isfinite()
                else [int(first[at].argmax())]
                for at in range(len(self.names))
            ]
        )
