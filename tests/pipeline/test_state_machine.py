"""Random histories of a pipeline against a simple model: a fresh matcher for each request.

Requests come, step in any order, leave, are preempted and come back; workers are killed between the calls of
a step. `make fuzz-inputs` runs more of them (GUIDED_EXAMPLES).
"""

import contextlib
import dataclasses
import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.errors import PipelineError

EXAMPLES = int(os.environ.get("GUIDED_EXAMPLES", "4"))
END = BYTES.stop_token_ids[0]
WIDTH = BYTES.size + 3
SLOTS = 4
KILLS = 2
"""In one history: three deaths within a minute, and requests are refused."""
OPEN = ord("<")

SPECS = [
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
    gp.OutputSpec.regex("[a-c]{2,30}", backend="xgrammar"),
    gp.OutputSpec.regex("(ab|c)*"),
    gp.OutputSpec.json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 4}),
    gp.OutputSpec.json_schema(
        {"type": "array", "items": {"type": "integer", "maximum": 9}, "uniqueItems": True}
    ),
    gp.OutputSpec.grammar('root ::= "(" root ")" | "x"'),
    gp.OutputSpec.grammar('start: "a" start "b" | "c"', "lark"),
    gp.OutputSpec.regex("a{3}b*", start_after=[OPEN]),
]
# A new worker imports xgrammar, which takes long on a busy machine.
CONFIG = gp.GuidedConfig(threads=1, worker_step_ms=60_000, worker_grammar_ms=120_000)
REFERENCE = gp.GrammarCompiler(BYTES, config=gp.GuidedConfig(threads=1, isolate_compiles=False))


@dataclasses.dataclass
class Model:
    """What is true of a request."""

    name: str
    spec: gp.OutputSpec
    slot: int
    tokens: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        grammar = REFERENCE.compile(self.spec)
        self.matcher = REFERENCE.backend(grammar.backend).start(grammar, (END,))
        self.begun = self.spec.start_after is None
        self.done = False

    @property
    def waits(self):
        """Whether its constrained part has not begun."""
        return not self.begun and not self.done

    def sampled(self, token):
        """A token of a step; those after the end are padding."""
        if self.done:
            return
        self.tokens.append(token)
        self.done = token == END
        if self.begun:
            assert self.matcher.accept(token), (self.name, self.spec.summary(), self.tokens)
        self.begun |= token == OPEN


class History(RuleBasedStateMachine):
    def __init__(self, mode, compiler):
        super().__init__()
        self.pipe = gp.StepPipeline(compiler, max_slots=SLOTS, mode=mode)
        self.process = mode == "process"
        self.live, self.away = {}, {}
        self.count = self.kills = 0

    @initialize(spec=st.sampled_from(SPECS))
    def begin(self, spec):
        self.add(spec)

    def teardown(self):
        try:
            for model in self.live.values():
                assert list(self.pipe.tokens(model.name)) == model.tokens
        finally:
            self.pipe.close()

    @rule(spec=st.sampled_from(SPECS))
    def add(self, spec):
        self.count += 1
        name = f"r{self.count}"
        if len(self.live) < SLOTS:
            self.live[name] = Model(name, spec, self.pipe.add_request(name, spec))
            return
        with pytest.raises(PipelineError, match="slots are taken"):
            self.pipe.add_request(name, spec)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data):
        model = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.pipe.remove_request(model.name)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def preempt(self, data):
        model = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        assert list(self.pipe.tokens(model.name)) == model.tokens
        self.pipe.remove_request(model.name)
        self.away[model.name] = model

    @precondition(lambda self: self.away and len(self.live) < SLOTS)
    @rule(data=st.data())
    def resume(self, data):
        model = self.away.pop(data.draw(st.sampled_from(sorted(self.away))))
        model.slot = self.pipe.add_request(model.name, model.spec, tokens=model.tokens)
        self.live[model.name] = model

    @precondition(lambda self: self.process and self.kills < KILLS)
    @rule()
    def kill(self):
        self.kills += 1
        pid = self.pipe.runtime.supervisor.worker_pid
        with contextlib.suppress(ProcessLookupError):  # the one before has ended, the next is not there yet
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    @rule(
        seed=st.integers(0, 2**32),
        data=st.data(),
        kill=st.sampled_from([None, None, None, "planned", "filled"]),
    )
    def step(self, seed, data, kill):
        """Some of the requests in any order, and rows without one among them."""
        rows = data.draw(st.permutations([*self.live.values(), None]))
        rows = rows[: data.draw(st.integers(1, len(rows)))]
        generator = torch.Generator().manual_seed(seed)
        logits = torch.rand(len(rows), WIDTH, generator=generator)
        logits[:, [END, OPEN]] += 0.05
        # An output that ends before its trigger is an error: tests/grammar has those.
        logits[[row for row, model in enumerate(rows) if model is not None and model.waits], END] = -1.0
        before = logits.clone()
        self.pipe.plan([gp.UNGUIDED if model is None else model.slot for model in rows])
        if kill == "planned" and self.process and self.kills < KILLS:
            self.kill()
        self.pipe.fill_mask()
        if kill == "filled" and self.process and self.kills < KILLS:
            self.kill()
        self.pipe.apply_mask(logits)
        tokens = logits.argmax(-1)
        self.pipe.schedule_update(tokens)
        self.pipe.finish_update()
        for row, (model, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if model is None:
                assert torch.equal(logits[row], before[row])
                continue
            allowed = logits[row].isfinite()
            assert torch.equal(logits[row][allowed], before[row][allowed])
            model.sampled(token)

    @rule(steps=st.integers(2, 6), seed=st.integers(0, 2**32), data=st.data())
    def steps(self, steps, seed, data):
        for number in range(steps):
            self.step(seed + number, data, None)

    @invariant()
    def nothing_fails_and_slots_are_recycled(self):
        slots = [model.slot for model in self.live.values()]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < SLOTS for slot in slots)
        for model in self.live.values():
            assert self.pipe.request(model.name).error is None, model


def test_any_history(mode):
    compiler = gp.GrammarCompiler(BYTES, config=CONFIG)  # its template takes seconds to start
    run_state_machine_as_test(
        lambda: History(mode, compiler),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_model_notices_a_wrong_token():
    model = Model("r", SPECS[0], 0)
    model.sampled(ord("y"))
    with pytest.raises(AssertionError):
        model.sampled(ord("x"))
