"""The shared memory, the channel and the order of messages and steps; worker mode
against inline mode."""

import functools
import os
import pathlib
import random
import threading
import time

import pytest
import torch
from vocabularies import BYTES
from worker_runs import one_step

import guided_plugin as gp
from guided_plugin.errors import PipelineError, RequestError, VocabularyError
from guided_plugin.grammar.table import Phase
from guided_plugin.pipeline import runtime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region, Shape, unwrap
from guided_plugin.worker.words import Counter

END = BYTES.stop_token_ids[0]
WIDTH = BYTES.size + 3
SPECS = [
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
    gp.OutputSpec.regex("[a-c]{2,30}"),
    gp.OutputSpec.json_schema(
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 9}
    ),
    gp.OutputSpec.grammar('root ::= "(" root ")" | "x"'),
    gp.OutputSpec.choice(["ab"], start_after=[ord("<")], stop_token_ids=[END, 7]),
]


@pytest.fixture(scope="module")
def compiler():
    return gp.GrammarCompiler(
        BYTES, config=gp.GuidedConfig(threads=2, worker_step_ms=10_000)
    )


@pytest.fixture
def pipe(compiler):
    with gp.StepPipeline(compiler, max_slots=8, mode="process") as pipe:
        yield pipe


def test_a_region_is_checked_by_whoever_maps_it():
    shape = Shape(3, 9)
    region = Region.create(shape)
    try:
        assert region.address % 4096 == 0
        other = Region(os.dup(region.fd), shape, region.identity)
        region.store(Counter.FILLED, 2**32 + 5)
        region.masks[2, 1, 8] = -7
        region.tokens[TOKEN_DEPTH - 1, 2] = 2**40
        assert other.load(Counter.FILLED) == 5
        assert other.masks[2, 1, 8] == -7
        assert other.tokens[TOKEN_DEPTH - 1, 2] == 2**40
        with pytest.raises(PipelineError, match=r"bytes where .* were expected"):
            Region(region.fd, Shape(30, 900), region.identity)
        with pytest.raises(PipelineError, match="another version or engine"):
            Region(region.fd, shape, b"x" * 16)
        region._map[0] ^= 0xFF
        with pytest.raises(PipelineError, match="or damaged"):
            other.check()
        other.close()
    finally:
        region.close()
    assert not [
        name for name in os.listdir("/dev/shm") if name.startswith("guided_plugin")
    ]


def test_parts_of_the_region_do_not_overlap():
    region = Region.create(Shape(5, 11))
    try:
        for number, part in enumerate(
            (region.plans, region.masks, region.tokens, region.times), 1
        ):
            part[:] = number
        for counter in Counter:
            region.store(counter, 100 + counter)
        region.check()
        for number, part in enumerate(
            (region.plans, region.masks, region.tokens, region.times), 1
        ):
            assert (part == number).all()
        assert [region.load(counter) for counter in Counter] == [
            100 + counter for counter in Counter
        ]
    finally:
        region.close()


def test_a_closed_row_allows_stop_tokens_only():
    region = Region.create(Shape(2, 9))
    try:
        region.masks[:] = -1
        region.close_row(PLAN_DEPTH + 1, 1, 2, (0, 31, 256))
        bits = [
            i for i in range(9 * 32) if int(region.masks[1, 1, i // 32]) >> (i % 32) & 1
        ]
        assert bits == [0, 31, 256]
        assert (region.masks[1, 0] == -1).all()
    finally:
        region.close()


@pytest.mark.parametrize("near", [0, 5, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 3])
def test_step_numbers_wrap(near):
    for distance in (-(2**31), -1000, -1, 0, 1, 1000, 2**31 - 1):
        assert unwrap((near + distance) & 0xFFFFFFFF, near) == near + distance


@pytest.mark.parametrize(
    ("first", "steps"), [(0, 200), (2**31 - 20, 50), (2**32 - 20, 50)]
)
def test_both_modes_do_the_same_for_a_long_time(compiler, monkeypatch, first, steps):
    """Adds, aborts, slot reuse, skipped steps, replays, tokens from elsewhere: step by
    step the same."""
    monkeypatch.setattr(
        runtime, "WorkerRuntime", functools.partial(WorkerRuntime, first_step=first)
    )
    shuffle = random.Random(first)
    generator = torch.Generator().manual_seed(3)
    inline = gp.StepPipeline(compiler, max_slots=8, mode="inline")
    worker = gp.StepPipeline(compiler, max_slots=8, mode="process")
    pipes = (inline, worker)
    running = {}
    count = 0
    compared = 0
    try:
        for _ in range(steps):
            while len(running) < 8 and shuffle.random() < 0.6:
                name = f"r{count}"
                spec = shuffle.choice(SPECS)
                tokens = (
                    [ord("a")] if spec is SPECS[1] and shuffle.random() < 0.3 else []
                )
                slots = {pipe.add_request(name, spec, tokens=tokens) for pipe in pipes}
                assert len(slots) == 1
                running[name] = slots.pop()
                count += 1
            present = shuffle.sample(list(running), shuffle.randint(0, len(running)))
            slots = [running[name] for name in present] + [
                gp.UNGUIDED
            ] * shuffle.randrange(2)
            shuffle.shuffle(slots)
            logits = torch.rand(len(slots), WIDTH, generator=generator)
            logits[:, ord("<")] += 0.2
            forced = (
                shuffle.randrange(len(slots))
                if slots and shuffle.random() < 0.02
                else None
            )
            found = []
            for pipe in pipes:
                mine = logits.clone()
                pipe.plan(slots)
                pipe.fill_mask()
                pipe.apply_mask(mine)
                tokens = mine.argmax(-1)
                if forced is not None:
                    tokens[forced] = 255
                pipe.schedule_update(tokens)
                pipe.finish_update()
                found.append(mine.view(torch.int32))
            assert torch.equal(*found)
            for name in list(running):
                if shuffle.random() < 0.2:
                    states = [
                        (p.tokens(name), p.phase(name), str(p.request(name).error))
                        for p in pipes
                    ]
                    assert states[0] == states[1]
                    compared += 1
                if shuffle.random() < 0.1:
                    for pipe in pipes:
                        pipe.remove_request(name)
                    del running[name]
    finally:
        for pipe in pipes:
            pipe.close()
    assert compared > steps // 3
    assert count > steps // 5


def test_tokens_that_can_not_be_taken_leave_the_step_as_it_was(pipe, monkeypatch):
    slot = pipe.add_request("one", SPECS[0])
    pipe.plan([gp.UNGUIDED, gp.UNGUIDED, slot])
    pipe.fill_mask()
    pipe.apply_mask(torch.rand(3, WIDTH))
    with pytest.raises(PipelineError, match="row 2 is planned, 2 tokens"):
        pipe.schedule_update(torch.tensor([1, 2]))

    def fail(step, tokens):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(pipe.runtime.buffers.tokens, "write", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            pipe.schedule_update(torch.tensor([1, 2, 3]))
    assert pipe.tokens("one") == ()
    pipe.schedule_update(torch.tensor([1, 2, ord("y")]))
    pipe.finish_update()
    assert one_step(pipe, [slot], torch.rand(1, WIDTH)).tolist() == [ord("e")]
    assert pipe.tokens("one") == (ord("y"), ord("e"))


def test_journals_outlast_the_ring(pipe):
    slot = pipe.add_request("one", gp.OutputSpec.regex("[a-c]{2000}"))
    generator = torch.Generator().manual_seed(1)
    rows = (torch.rand(1, WIDTH, generator=generator) for _ in range(TOKEN_DEPTH + 300))
    out = [int(one_step(pipe, [slot], row)) for row in rows]
    assert pipe.tokens("one") == tuple(out)
    assert set(bytes(out)) == set(b"abc")


def test_specs_are_compiled_once_and_in_the_background(pipe):
    first = pipe.prepare(SPECS[2])
    second = pipe.prepare(SPECS[2])
    assert first is second or first.done()
    assert first.result(60).backend == "llguidance"
    known = pipe.prepare(SPECS[2])
    assert known.done()
    with pytest.raises(gp.errors.GrammarError):
        pipe.prepare(gp.OutputSpec.regex("a(?=b)")).result(60)
    with pytest.raises(RequestError, match="stop token 999 is outside the vocabulary"):
        pipe.add_request("one", gp.OutputSpec.regex("a", stop_token_ids=[999]))
    with pytest.raises(VocabularyError, match="no encoder"):
        pipe.add_request("one", gp.OutputSpec.regex("a", start_after="text"))
    assert pipe.add_request("one", SPECS[0]) == 0


def test_an_idle_worker_takes_little_of_a_processor(pipe):
    slot = pipe.add_request("one", SPECS[1])
    pid = pipe.runtime.supervisor.worker_pid
    one_step(pipe, [slot], torch.rand(1, WIDTH))
    assert pipe.phase("one") is Phase.ACTIVE
    time.sleep(1.2)

    def used():
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def share():
        before = used()
        time.sleep(2.0)
        return (used() - before) / 2.0

    # The machine may be busy with other things, and with what ends elsewhere in this
    # process.
    assert min(share() for _ in range(3)) < 0.05


def test_figures_of_the_worker(pipe):
    assert pipe.metrics().worker.steps == 0
    slot = pipe.add_request("one", SPECS[1])
    for _ in range(9):
        one_step(pipe, [slot, gp.UNGUIDED], torch.rand(2, WIDTH))
    pipe.tokens("one")
    found = pipe.metrics()
    assert (found.mode, found.steps, found.rows, found.running, found.added) == (
        "process",
        9,
        9,
        1,
        1,
    )
    assert found.backends == {pipe.request("one").backend: 1}
    assert found.worker.steps == 9
    assert (
        0
        < found.worker.fill
        < found.worker.plan_to_mask
        <= found.worker.plan_to_mask_p99
        < 5
    )
    assert 0 < found.worker.accept < 5
    assert 0 < found.worker.exposed_wait < 5
    for name in ("plan_to_mask", "accept", "fill", "exposed_wait"):
        *counts, total = found.worker.times[name]
        assert sum(counts) == 9, name
        assert 0 < total < 9 * 5
    assert sum(found.worker.times["answer"]) == 0
    assert sum(found.times["main_thread"][:-1]) == 9
    assert pipe.metrics().worker.times == found.worker.times  # each step once
    assert found.worker.restarts == 0
    assert 0 < found.main_thread < 5


def test_closing_is_final_and_can_be_repeated(compiler):
    pipe = gp.StepPipeline(compiler, max_slots=2, mode="process")
    slot = pipe.add_request("one", SPECS[0])
    pipe.plan([slot])
    threads = threading.active_count()
    pipe.close()
    pipe.close()
    assert threading.active_count() == threads - 1
    with pytest.raises(PipelineError, match="is closed"):
        pipe.add_request("two", SPECS[0])
    with pytest.raises(PipelineError, match="is closed"):
        pipe.prepare(SPECS[1]).result(1)
