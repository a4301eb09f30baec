"""Random histories of a pipeline against simple models.

Requests come, step in any order, leave, are preempted and come back; workers are killed
between the calls of a step: a fresh matcher for each request knows the masks. The calls
of a step come in any order: patterns know which of them may come. `make fuzz-inputs`
runs more of the former (GUIDED_EXAMPLES).
"""

import contextlib
import dataclasses
import functools
import os
import random
import re
import signal

import pytest
import torch
from compilers import compiler_of, start
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
from rank_threads import sharing
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.kernels import mask_rows
from guided_plugin.pipeline import runtime
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.engine.runtime import WorkerRuntime

EXAMPLES = int(os.environ.get("GUIDED_EXAMPLES", "4"))
END = BYTES.stop_token_ids[0]
WIDTH = BYTES.size + 3
SLOTS = 4
KILLS = 2
"""In one history: three deaths within a minute, and requests are refused."""
OPEN = ord("<")

SPECS = [
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
    gp.OutputSpec.grammar("root ::= [a-c]{2,30}"),
    gp.OutputSpec.regex("(ab|c)*"),
    gp.OutputSpec.json_schema(
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}
    ),
    gp.OutputSpec.json_schema(
        {
            "type": "array",
            "items": {"type": "integer", "maximum": 9},
            "uniqueItems": True,
        }
    ),
    gp.OutputSpec.grammar('root ::= "(" root ")" | "x"'),
    gp.OutputSpec.grammar('start: "a" start "b" | "c"', "lark"),
    gp.OutputSpec.regex("a{3}b*", start_after=[OPEN]),
]
# A new worker imports xgrammar, which takes long on a busy machine.
CONFIG = gp.GuidedConfig(threads=1, worker_step_ms=60_000, worker_grammar_ms=120_000)
REFERENCE = compiler_of(BYTES)


@dataclasses.dataclass
class Model:
    """What is true of a request."""

    name: str
    spec: gp.OutputSpec
    slot: int
    tokens: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.matcher = start(REFERENCE, self.spec)
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
            assert self.matcher.accept(token), (
                self.name,
                self.spec.summary(),
                self.tokens,
            )
        self.begun |= token == OPEN


class History(RuleBasedStateMachine):
    def __init__(self, mode, compiler):
        super().__init__()
        self.pipe = gp.StepPipeline(compiler, max_slots=SLOTS, mode=mode)
        self.process = mode == "process"
        self.live = {}
        self.away = {}
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
        # the one before has ended, the next is not there yet
        with contextlib.suppress(ProcessLookupError):
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
        logits[
            [
                row
                for row, model in enumerate(rows)
                if model is not None and model.waits
            ],
            END,
        ] = -1.0
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


def test_any_history(mode, monkeypatch):
    # so that the numbers of a worker's steps wrap
    made = functools.partial(WorkerRuntime, first_step=2**32 - 9)
    monkeypatch.setattr(runtime, "WorkerRuntime", made)
    # its template takes seconds to start
    compiler = gp.GrammarCompiler(BYTES, config=CONFIG)
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


# The order of the calls of a step

MASKED = "[PN]F[AT]T*"
PLANS = "|PF|PF[AT]T*SR+|N.*"
ORDER = {
    "P": ("plan", PLANS),
    "N": ("plan", PLANS),
    "F": ("fill_mask", "[PN]"),
    "A": ("apply_mask", "[PN]F"),
    "T": ("take_masks", f"[PN]F|{MASKED}"),
    "S": ("schedule_update", MASKED),
    "U": ("finish_update", f"{MASKED}SR*"),
}
"""By letter: a call, and after which calls since the last finish_update it may come. P
is a plan with guided rows, N one without; R: a request was removed. A plan that was not
masked with may be given up, and any step without guided rows."""
WORDS = {"one": "abc", "two": "xy", "three": "13579"}
"""What each request repeats: its mask shows how many tokens were accepted."""


class Calls:
    """The calls of `ORDER` on the pipelines of all ranks, of which the first has the
    grammars."""

    def __init__(self, pipes, source):
        self.pipes = pipes
        self.source = source
        self.so_far = ""
        self.slots = {}
        self.counts = {}
        self.planned = []
        for name in ("one", "two"):
            self.add(name)

    def add(self, name):
        spec = gp.OutputSpec.regex(f"({WORDS[name]})*")
        self.counts[name] = 0
        self.slots[name], *others = (
            pipe.add_request(name, spec) for pipe in self.pipes
        )
        assert all(slot == self.slots[name] for slot in others)

    def remove(self, name):
        """Those that a plan may name come back at once, with another slot perhaps."""
        for pipe in self.pipes:
            pipe.remove_request(name)
        del self.slots[name]
        self.add(self.source.choice([*WORDS.keys() - self.slots.keys()]))
        if self.so_far.startswith("P"):
            self.so_far = self.so_far + "R" if "S" in self.so_far else ""

    def next_letter(self, name):
        return WORDS[name][self.counts[name] % len(WORDS[name])]

    def may_come(self, letter):
        return re.fullmatch(ORDER[letter][1], self.so_far) is not None

    def call(self, letter):
        legal = self.may_come(letter)
        if letter in "PN":
            names = [*self.slots, None] if letter == "P" else [None, None]
            self.source.shuffle(names)
            wanted = [self.slots.get(name, gp.UNGUIDED) for name in names]
        else:
            wanted = [
                ord(self.next_letter(name)) if name else NO_TOKEN
                for name in self.planned
            ]
        for rank, pipe in enumerate(self.pipes):
            if legal:
                self.do(pipe, letter, wanted)
            elif (
                rank == 0 or letter != "U" or not re.fullmatch(MASKED, self.so_far)
            ):  # others hand over nothing
                with pytest.raises(PipelineError) as failure:
                    self.do(pipe, letter, wanted)
                assert failure.value.what.startswith(
                    f"{ORDER[letter][0]} was called where "
                ), failure.value
        if not legal:
            return
        if letter in "PN":
            self.so_far = ""
            self.planned = names
        if letter == "S" and self.so_far.startswith("P"):
            for name in filter(None, self.planned):
                self.counts[name] += 1
        self.so_far = "" if letter == "U" else self.so_far + letter

    def do(self, pipe, letter, wanted):
        """A call. `wanted`: its slots, or the tokens that the grammars allow next."""
        if letter in "PN":
            pipe.plan(wanted)
        elif letter == "F":
            pipe.fill_mask()
        elif letter == "S":
            pipe.schedule_update(torch.tensor(wanted))
        elif letter == "U":
            pipe.finish_update()
        else:
            logits = torch.zeros(len(wanted), WIDTH)
            if letter == "T":
                masks = pipe.take_masks(logits)
                rows = [row for row, token in enumerate(wanted) if token != NO_TOKEN]
                mask_rows(
                    logits, masks, torch.tensor(rows, dtype=torch.int32), BYTES.size
                )
            else:
                pipe.apply_mask(logits)
            for row, token in enumerate(wanted):
                left = {*logits[row].isfinite().nonzero().flatten().tolist()}
                assert left - {END} == (
                    {token} if token != NO_TOKEN else {*range(WIDTH)} - {END}
                )


@pytest.fixture(scope="module")
def compiler():
    return gp.GrammarCompiler(BYTES, config=CONFIG)


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_in_any_order(mode, ranks, compiler, monkeypatch):
    """One that leaves logits unmasked or tokens unaccepted is an error with its name,
    and changes nothing."""
    source = random.Random(len(mode) + ranks)
    with contextlib.ExitStack() as stack:
        if ranks == 1:
            pipes = [
                stack.enter_context(
                    gp.StepPipeline(compiler, max_slots=SLOTS, mode=mode)
                )
            ]
        else:
            pipes = stack.enter_context(sharing())("aa", mode)
        calls = Calls(pipes, source)
        seen = set()
        most = 0
        for _ in range(2000):
            legal = [letter for letter in ORDER if calls.may_come(letter)]
            letter = source.choice(legal if source.random() < 0.7 else [*ORDER])
            if source.random() < 0.02:
                calls.remove(source.choice([*calls.slots]))
            else:
                seen.add((letter, letter in legal))
                calls.call(letter)
            most = max(most, *calls.counts.values())
        assert seen == {(letter, may) for letter in ORDER for may in (False, True)}
        assert most > 5
        for name, count in calls.counts.items():
            if name in calls.slots:
                text = (WORDS[name] * count)[:count]
                assert pipes[0].tokens(name) == tuple(text.encode())


GIVEN = {
    "plan": [[0]],
    "apply_mask": [torch.zeros(1, WIDTH)],
    "take_masks": [torch.zeros(1, WIDTH)],
    "schedule_update": [torch.tensor([ord("a")])],
}
VERBS = ("plan", "fill_mask", "apply_mask", "schedule_update", "finish_update")


def test_drafts_in_any_order(mode, compiler):
    """The five verbs are errors. Masks may be fetched before the third step that is
    sent after theirs."""
    source = random.Random(7)
    word = "abc"
    with gp.StepPipeline(compiler, max_slots=1, mode=mode, drafts=1) as pipe:
        slot = pipe.add_request("r", gp.OutputSpec.regex("(abc)*"))
        count = 0
        sent = []
        late = 0
        for number in range(300):
            kind = source.choice(["verb", "send", "send", "fetch", "fetch", "remove"])
            if kind == "verb":
                verb = source.choice([*VERBS, "take_masks"])
                with pytest.raises(
                    PipelineError,
                    match=rf"^{verb} was called where send_drafts is due",
                ):
                    getattr(pipe, verb)(*GIVEN.get(verb, ()))
            elif kind == "send":
                text = [ord(word[(count + at) % 3]) for at in range(3)]
                count += 1
                tokens = torch.tensor([text[0], NO_TOKEN, text[1]])
                sent.append((pipe.send_drafts([slot], tokens), text[1:]))
            elif kind == "fetch" and sent:
                after = source.randrange(min(5, len(sent)))
                step, expected = sent[-1 - after]
                if after > 2:
                    late += 1
                    with pytest.raises(
                        PipelineError, match=r"^draft_masks was called where"
                    ):
                        pipe.draft_masks(step, torch.zeros(1, WIDTH))
                    continue
                logits = torch.zeros(2, WIDTH)
                masks = pipe.draft_masks(step, logits)
                mask_rows(
                    logits, masks, torch.tensor([0, 1], dtype=torch.int32), BYTES.size
                )
                found = [
                    {*row.isfinite().nonzero().flatten().tolist()} - {END}
                    for row in logits
                ]
                assert found == [{token} for token in expected], number
            elif kind == "remove":
                assert pipe.tokens("r") == tuple((word * count)[:count].encode())
                pipe.remove_request("r")
                slot = pipe.add_request("r", gp.OutputSpec.regex("(abc)*"))
                count = 0
        assert late > 5
    with gp.StepPipeline(compiler, max_slots=1, mode=mode) as pipe:
        for name, given in (
            ("send_drafts", ([0], tokens)),
            ("draft_masks", (step, logits)),
        ):
            said = f"^{name} was called where plan is due"
            with pytest.raises(PipelineError, match=said):
                getattr(pipe, name)(*given)
