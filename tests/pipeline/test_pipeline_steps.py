"""The five verbs on the CPU: order, rows, slots, failures. Every output is re-checked
by a fresh matcher."""

import random

import pytest
import torch
from compilers import start, tokens_of
from worker_runs import one_step

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.grammar.table import Phase
from guided_plugin.step import NO_TOKEN

END = 256
VOCABULARY = gp.Vocabulary.from_tokens(
    [
        *(bytes([byte]) for byte in range(256)),
        b"</s>",
        b'{"',
        b'":',
        b"true",
        b"<ctrl>",
    ],
    [END],
    [260],
)
WIDTH = 300  # wider than the vocabulary: padding
SPECS = [
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
    gp.OutputSpec.regex("[a-c]{2,6}"),
    gp.OutputSpec.json_schema({"enum": [{"a": 1}, [True, None], "x"]}),
    gp.OutputSpec.grammar('start: "(" start ")" | "x"', "lark"),
    gp.OutputSpec.json_schema(
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
    ),
]


@pytest.fixture(scope="module")
def compiler():
    return gp.GrammarCompiler(VOCABULARY)


@pytest.fixture
def pipe(compiler, mode):
    with gp.StepPipeline(compiler, max_slots=8, mode=mode) as pipe:
        yield pipe


@pytest.fixture
def inline(compiler):
    return gp.StepPipeline(compiler, max_slots=8, mode="inline")


def step(pipe, slots, generator, logits=None):
    """One step over random logits; the sampled tokens by row, and the logits."""
    logits = (
        torch.randn(len(slots), WIDTH, generator=generator)
        if logits is None
        else logits
    )
    return one_step(pipe, slots, logits).tolist(), logits


def recheck(compiler, spec, tokens):
    return all(map(start(compiler, spec).accept, tokens))


def test_no_token_says_that_a_row_had_none(pipe, compiler):
    """As hosts do in the middle of a prompt: the row was masked, and nothing of it
    counts."""
    generator = torch.Generator().manual_seed(3)
    skip = random.Random(3)
    slots = {
        name: pipe.add_request(name, SPECS[1 + at % 3])
        for at, name in enumerate("abcd")
    }
    out = {name: [] for name in slots}
    for _ in range(60):
        logits = torch.randn(4, WIDTH, generator=generator)
        pipe.plan(list(slots.values()))
        pipe.fill_mask()
        tokens = pipe.apply_mask(logits).argmax(-1)
        for row, name in enumerate(slots):
            if skip.random() < 0.4:
                tokens[row] = NO_TOKEN
            else:
                out[name].append(int(tokens[row]))
        pipe.schedule_update(tokens)
        pipe.finish_update()
    for at, name in enumerate(slots):
        counted = pipe.tokens(name)
        assert counted == tuple(out[name][: out[name].index(END) + 1])
        assert recheck(compiler, SPECS[1 + at % 3], counted)
        assert pipe.phase(name) is Phase.DONE


def test_a_request_that_is_not_waited_for_fails_later_or_now(pipe):
    bad = gp.OutputSpec.json_schema({"type": "string", "pattern": f"(?<=a){pipe.mode}"})
    if pipe.mode == "inline":
        with pytest.raises(gp.GuidedError):
            pipe.add_request("bad", bad, wait=False)
        return
    pipe.add_request("first", SPECS[0])  # the worker is there
    slot = pipe.add_request("bad", bad, wait=False)
    good = pipe.add_request("good", SPECS[0], wait=False)
    generator = torch.Generator().manual_seed(1)
    tokens, _ = step(pipe, [slot, good], generator)
    assert tokens[0] == END
    assert pipe.request("bad").error is not None
    assert pipe.request("good").error is None
    assert sum(pipe.metrics().backends.values()) == 2


def test_metrics_say_which_backend_took_a_request(pipe):
    for number, spec in enumerate(
        [
            gp.OutputSpec.grammar('root ::= "a"', backend="xgrammar"),
            gp.OutputSpec.grammar('root ::= "b"', backend="xgrammar"),
            gp.OutputSpec.regex("c", backend="llguidance"),
            SPECS[2],
        ]
    ):
        pipe.add_request(str(number), spec)
    assert pipe.metrics().backends == {"xgrammar": 2, "llguidance": 2}


def test_a_token_from_elsewhere_fails_its_row_closed_and_no_other(pipe, compiler):
    failed = []

    class Listener:
        @gp.hookimpl
        def request_failed(self, request):
            failed.append(request)

    listener = Listener()
    compiler.plugins.register(listener)
    try:
        bad = pipe.add_request("bad", SPECS[0])
        good = pipe.add_request("good", SPECS[3])
        pipe.plan([bad, good])
        pipe.fill_mask()
        pipe.apply_mask(torch.randn(2, WIDTH))
        pipe.schedule_update(torch.tensor([ord("z"), ord("(")], dtype=torch.int32))
        pipe.finish_update()
        tokens, logits = step(pipe, [bad, good], None)
        assert "breaks the grammar" in str(pipe.request("bad").error)
    finally:
        compiler.plugins.unregister(listener)
    assert [request.request_id for request in failed] == ["bad"]
    assert pipe.runtime.take_closed()[-1].step == pipe.runtime.newest
    assert pipe.phase("bad") is Phase.FAILED
    assert pipe.tokens("bad") == ()
    assert tokens[0] == END
    assert (logits[0] > -torch.inf).sum() == 1
    assert pipe.request("good").error is None
    assert recheck(compiler, SPECS[3], pipe.tokens("good"))


def test_metrics_count_steps_with_a_guided_row(compiler):
    pipe = gp.StepPipeline(compiler, max_slots=1)
    slot = pipe.add_request("one", SPECS[0])
    step(pipe, [gp.UNGUIDED], None)
    assert (pipe.metrics().steps, pipe.metrics().main_thread) == (0, 0.0)
    step(pipe, [slot], None)
    found = pipe.metrics()
    assert (found.steps, found.rows, found.main_thread > 0) == (1, 1, True)
    assert sum(found.times["main_thread"][:-1]) == 1


def test_what_is_out_of_range_is_an_error_with_a_way_out(pipe, compiler):
    """Calls in another order: test_state_machine.py."""
    slot = pipe.add_request("one", SPECS[0])
    pipe.plan([slot])
    pipe.fill_mask()
    for logits, says in (
        (torch.zeros(1, 7, dtype=torch.int64), r"\[rows, width\]"),
        (torch.randn(0, WIDTH), "row 0 is planned"),
        (torch.randn(1, 17), "columns"),
    ):
        with pytest.raises(gp.GuidedError, match=says):
            pipe.apply_mask(logits)
    pipe.apply_mask(torch.randn(1, WIDTH))
    with pytest.raises(PipelineError, match=r"\[rows\]"):
        pipe.schedule_update(torch.zeros(1, 1, dtype=torch.int64))
    pipe.schedule_update(torch.tensor([ord("y")]))
    pipe.finish_update()
    small = gp.StepPipeline(compiler, max_slots=1)
    small.add_request("a", SPECS[0])
    for call, says in (
        (lambda: pipe.plan([5]), "no request"),
        (lambda: pipe.plan([slot, slot]), "two rows"),
        (lambda: pipe.add_request("one", SPECS[0]), "running already"),
        (lambda: pipe.remove_request("nobody"), "not running"),
        (lambda: small.add_request("b", SPECS[0]), "max_slots"),
        (lambda: gp.StepPipeline(compiler, max_slots=0), "at least 1"),
    ):
        with pytest.raises(PipelineError, match=says):
            call()


def test_a_plan_whose_request_has_left_masks_nothing():
    pipeline = gp.StepPipeline(gp.GrammarCompiler(VOCABULARY), max_slots=2)
    slots = [
        pipeline.add_request(name, gp.OutputSpec.choice(["a"]))
        for name in ("one", "two")
    ]
    pipeline.plan(slots)
    pipeline.fill_mask()
    assert pipeline.planned == tuple(slots)
    pipeline.remove_request("one")
    assert pipeline.planned == ()
    for call in (pipeline.apply_mask, pipeline.take_masks):
        with pytest.raises(
            PipelineError,
            match=r"where plan is due .*remove_request makes a plan stale",
        ):
            call(torch.zeros(2, WIDTH))
    pipeline.plan([gp.UNGUIDED, slots[1]])
    pipeline.fill_mask()
    masked = pipeline.apply_mask(torch.zeros(2, WIDTH))
    assert masked[0].isfinite().all()
    assert masked[1].isfinite().sum() == 1


def test_drafts_are_judged_in_one_call(mode):
    """A step that is refused hangs nothing; what is asked in between is answered."""
    compiler = gp.GrammarCompiler(VOCABULARY)
    with gp.StepPipeline(compiler, max_slots=2, mode=mode, drafts=2) as pipeline:
        slot = pipeline.add_request("one", gp.OutputSpec.choice(["ab"]))
        logits = torch.zeros(3, WIDTH)
        assert pipeline.phase("one") is Phase.ACTIVE
        for slots, count, says in (
            ([slot, gp.UNGUIDED], 10, "only guided slots have drafts"),
            ([slot], 1, r"5 sampled and proposed tokens are expected, not \(1,\)"),
        ):
            with pytest.raises(PipelineError, match=says):
                pipeline.send_drafts(slots, torch.zeros(count).long())
        assert pipeline.token_sink() is None
        a = ord("a")
        b = ord("b")
        step = pipeline.send_drafts(
            [slot], torch.tensor([NO_TOKEN, NO_TOKEN, NO_TOKEN, a, b])
        )
        masks = pipeline.draft_masks(step, logits)
        assert tokens_of(masks.numpy()) == [[a], [b], [END]]
        pipeline.send_drafts([slot], torch.tensor([a, b, NO_TOKEN, NO_TOKEN, NO_TOKEN]))
        assert pipeline.tokens("one") == (a, b)


def test_drafts_see_which_items_they_would_repeat(pipe):
    unique = {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b"]}}
    with gp.StepPipeline(
        pipe.compiler, max_slots=1, mode=pipe.mode, drafts=3
    ) as pipeline:
        slot = pipeline.add_request(
            "one", gp.OutputSpec.json_schema(unique, whitespace="compact")
        )
        for sampled, drafts in ((b'["a"', [NO_TOKEN] * 3), (b"", b',"b')):
            block = [*sampled, *[NO_TOKEN] * (4 - len(sampled)), *drafts]
            step = pipeline.send_drafts([slot], torch.tensor(block))
            masks = pipeline.draft_masks(step, torch.zeros(4, WIDTH))
        seen = [bytes(i for i in row if i < 256) for row in tokens_of(masks.numpy())]
        assert seen == [b",]", b'"', b"b", b'"']
        assert pipeline.tokens("one") == tuple(b'["a"')
