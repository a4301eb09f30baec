"""The five verbs on the CPU: order, rows, slots, failures. Every output is re-checked
by a fresh matcher."""

import random

import pytest
import torch
from worker_runs import one_step

import guided_plugin as gp
from guided_plugin.errors import GrammarError, PipelineError, SpecError
from guided_plugin.grammar.table import Phase
from guided_plugin.pipeline import pipeline, requests
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
    gp.OutputSpec.grammar('root ::= "(" root ")" | "x"'),
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
    grammar = compiler.compile(spec)
    matcher = compiler.backend(grammar.backend).start(
        grammar, VOCABULARY.stop_token_ids
    )
    return all(matcher.accept(token) for token in tokens)


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


def test_a_host_may_take_the_masks_and_apply_them_itself(pipe, compiler):
    slot = pipe.add_request("a", SPECS[0])
    logits = torch.zeros(3, WIDTH)
    pipe.plan([slot])
    with pytest.raises(
        PipelineError, match="take_masks was called where fill_mask is due"
    ):
        pipe.take_masks(logits)
    pipe.fill_mask()
    mask = pipe.take_masks(logits)
    allowed = [
        token
        for token in range(VOCABULARY.size)
        if int(mask[0, token // 32]) >> (token % 32) & 1
    ]
    assert allowed == sorted(b"ynm")


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


def test_unguided_rows_are_bit_identical_and_guided_rows_lose_their_padding(pipe):
    slot = pipe.add_request("one", SPECS[0])
    logits = torch.randn(3, WIDTH)
    logits[0, 0], logits[2, 5] = torch.nan, torch.inf
    before = logits.clone()
    step(pipe, [gp.UNGUIDED, slot, gp.UNGUIDED], None, logits)
    assert torch.equal(
        logits[[0, 2]].view(torch.int32), before[[0, 2]].view(torch.int32)
    )
    allowed = {index for index in range(WIDTH) if logits[1, index] > -torch.inf}
    assert allowed == {ord("y"), ord("n"), ord("m")}


def test_metrics_say_which_backend_took_a_request_and_why(pipe, monkeypatch):
    monkeypatch.setattr(requests, "_MAX_CHOICES", 2)
    for number, spec in enumerate(
        [
            gp.OutputSpec.grammar('root ::= "a"', backend="xgrammar"),
            gp.OutputSpec.grammar('root ::= "b"', backend="xgrammar"),
            gp.OutputSpec.regex("c", backend="llguidance"),
            SPECS[2],
        ]
    ):
        pipe.add_request(str(number), spec)
    found = pipe.metrics()
    assert found.backends == {"xgrammar": 2, "llguidance": 2}
    assert found.choices["xgrammar", "the spec names it"] == 2
    assert found.choices["llguidance", "the spec names it"] == 1
    assert found.choices["llguidance", "other"] == 1


def test_nothing_happens_without_a_guided_row(pipe, monkeypatch):
    def never(*arguments):
        raise AssertionError("called")

    for name in ("plan", "fill", "masks", "sampled", "finish"):
        monkeypatch.setattr(pipe.runtime, name, never)
    monkeypatch.setattr(pipeline, "mask_rows", never)
    logits = torch.randn(2, WIDTH)
    before = logits.clone()
    step(pipe, [gp.UNGUIDED, gp.UNGUIDED], None, logits)
    assert torch.equal(logits, before)


def late_tokens(runtime, monkeypatch):
    """The second question whether a step's tokens are there is answered with yes."""
    asked = set()

    def sampled(step):
        return step in asked or asked.add(step)

    monkeypatch.setattr(runtime._region, "sampled", sampled)


def test_acceptance_is_deferred_until_the_tokens_have_landed(inline, monkeypatch):
    events = []
    late_tokens(inline.runtime, monkeypatch)
    accept = inline.runtime.table.accept
    fill = inline.runtime.table.fill
    monkeypatch.setattr(
        inline.runtime.table, "accept", lambda *a: (events.append("accept"), accept(*a))
    )
    monkeypatch.setattr(
        inline.runtime.table, "fill", lambda *a: (events.append("fill"), fill(*a))
    )
    slot = inline.add_request("one", SPECS[3])
    step(inline, [slot], None)
    assert events == ["fill"]
    step(inline, [slot], None)
    assert events == ["fill", "accept", "fill"]
    assert len(inline.tokens("one")) == 2


def test_tokens_in_flight_count_for_a_request_that_is_removed(inline, monkeypatch):
    late_tokens(inline.runtime, monkeypatch)
    slot = inline.add_request("one", SPECS[0])
    step(inline, [slot], None)
    inline.remove_request("one")
    assert inline.add_request("two", SPECS[1]) == slot
    tokens, _ = step(inline, [slot], None)
    assert bytes(tokens) in (b"a", b"b", b"c")
    assert inline.tokens("two") == tuple(tokens)


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
    assert pipe.phase("bad") is Phase.FAILED
    assert pipe.tokens("bad") == ()
    assert tokens[0] == END
    assert (logits[0] > -torch.inf).sum() == 1
    assert pipe.request("good").error is None
    assert recheck(compiler, SPECS[3], pipe.tokens("good"))


def test_statistics_and_their_hook(compiler):
    heard = []

    class Listener:
        @gp.hookimpl
        def step_finished(self, statistics):
            heard.append(statistics)

    pipe = gp.StepPipeline(compiler, max_slots=1)
    slot = pipe.add_request("one", SPECS[0])
    step(pipe, [slot], None)
    assert heard == []
    listener = Listener()
    compiler.plugins.register(listener)
    step(pipe, [slot], None)
    compiler.plugins.unregister(listener)
    assert heard == [pipe.statistics]
    assert (heard[0].step, heard[0].rows) == (1, 1)
    parts = ("plan", "fill_mask", "apply_mask", "schedule_update", "finish_update")
    assert heard[0].main_thread == pytest.approx(
        sum(getattr(heard[0], part) for part in parts)
    )


def test_calls_out_of_order_or_range_are_errors_with_a_way_out(pipe, compiler):
    slot = pipe.add_request("one", SPECS[0])
    pipe.plan([slot])
    with pytest.raises(
        PipelineError, match="apply_mask was called where fill_mask is due"
    ):
        pipe.apply_mask(torch.randn(1, WIDTH))
    pipe.fill_mask()
    with pytest.raises(PipelineError, match=r"\[rows, width\]"):
        pipe.apply_mask(torch.zeros(1, 7, dtype=torch.int64))
    with pytest.raises(PipelineError, match="row 0 is planned"):
        pipe.apply_mask(torch.randn(0, WIDTH))
    with pytest.raises(gp.errors.VocabularyError, match="columns"):
        pipe.apply_mask(torch.randn(1, 17))
    pipe.apply_mask(torch.randn(1, WIDTH))
    with pytest.raises(PipelineError, match=r"\[rows\]"):
        pipe.schedule_update(torch.zeros(1, 1, dtype=torch.int64))
    pipe.schedule_update(torch.tensor([ord("y")]))
    with pytest.raises(
        PipelineError, match="schedule_update was called where finish_update is due"
    ):
        pipe.schedule_update(torch.tensor([ord("y")]))
    pipe.finish_update()
    for slots, says in (([5], "no request"), ([slot, slot], "two rows")):
        with pytest.raises(PipelineError, match=says):
            pipe.plan(slots)
    with pytest.raises(PipelineError, match="running already"):
        pipe.add_request("one", SPECS[0])
    with pytest.raises(PipelineError, match="not running"):
        pipe.remove_request("nobody")
    small = gp.StepPipeline(compiler, max_slots=1)
    small.add_request("a", SPECS[0])
    with pytest.raises(PipelineError, match="max_slots"):
        small.add_request("b", SPECS[0])


def test_a_bad_spec_leaves_everything_as_it_was(pipe):
    slot = pipe.add_request("good", SPECS[0])
    with pytest.raises(GrammarError):
        pipe.add_request("bad", gp.OutputSpec.regex("a(?=b)"))
    with pytest.raises(GrammarError):
        pipe.add_request("bad", gp.OutputSpec.json_schema({"$ref": "#"}))
    with pytest.raises(SpecError):
        pipe.add_request("bad", gp.OutputSpec.json_schema({"type": "strng"}))
    assert step(pipe, [slot], None)[0][0] in b"ynm"
    assert pipe.add_request("bad", SPECS[1]) == slot + 1


def test_slots_are_given_out_lowest_first_and_reused(inline):
    assert [inline.add_request(name, SPECS[0]) for name in "abc"] == [0, 1, 2]
    inline.remove_request("b")
    assert inline.add_request("d", SPECS[0]) == 1
    with pytest.raises(PipelineError, match="at least 1"):
        gp.StepPipeline(inline.compiler, max_slots=0)


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


@pytest.mark.parametrize("mode", ["inline", "process"])
def test_drafts_are_judged_in_one_call(mode):
    """A step that is refused hangs nothing; what is asked in between is answered."""
    compiler = gp.GrammarCompiler(VOCABULARY)
    with gp.StepPipeline(compiler, max_slots=2, mode=mode, drafts=2) as pipeline:
        slot = pipeline.add_request("one", gp.OutputSpec.choice(["ab"]))
        logits = torch.zeros(3, WIDTH)
        assert pipeline.phase("one") is Phase.ACTIVE
        with pytest.raises(
            PipelineError, match="plan was called where judge_drafts is due"
        ):
            pipeline.plan([slot])
        with pytest.raises(PipelineError, match="only guided slots have drafts"):
            pipeline.judge_drafts(
                [slot, gp.UNGUIDED], torch.zeros(10, dtype=torch.int64), logits
            )
        with pytest.raises(
            PipelineError,
            match=r"5 sampled and proposed tokens are expected, not \(1,\)",
        ):
            pipeline.judge_drafts([slot], torch.zeros(1, dtype=torch.int64), logits)
        assert pipeline.token_sink() is None
        a = ord("a")
        b = ord("b")
        masks = pipeline.judge_drafts(
            [slot], torch.tensor([NO_TOKEN, NO_TOKEN, NO_TOKEN, a, b]), logits
        )
        bits = [
            [i for i in range(288) if int(row[i // 32]) >> (i % 32) & 1]
            for row in masks
        ]
        assert bits == [[a], [b], list(VOCABULARY.stop_token_ids)]
        pipeline.judge_drafts(
            [slot], torch.tensor([a, b, NO_TOKEN, NO_TOKEN, NO_TOKEN]), logits
        )
        assert pipeline.tokens("one") == (a, b)
        assert pipeline.metrics().steps == 2


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
            masks = pipeline.judge_drafts(
                [slot], torch.tensor(block), torch.zeros(4, WIDTH)
            )
        seen = [
            bytes(i for i in range(256) if int(row[i // 32]) >> (i % 32) & 1)
            for row in masks
        ]
        assert seen == [b",]", b'"', b"b", b'"']
        assert pipeline.tokens("one") == tuple(b'["a"')
