"""The shared memory, the channel and the order of messages and steps; worker mode
against inline mode."""

import os
import pathlib
import threading
import time

import pytest
import torch
from vocabularies import BYTES
from worker_runs import one_step

import guided_plugin as gp
from guided_plugin.errors import PipelineError, RequestError, VocabularyError
from guided_plugin.grammar.table import Phase
from guided_plugin.worker.layout import TOKEN_DEPTH

END = BYTES.stop_token_ids[0]
WIDTH = BYTES.size + 3
SPECS = [
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
    gp.OutputSpec.regex("[a-c]{2,30}"),
    gp.OutputSpec.json_schema(
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 9}
    ),
]


@pytest.fixture(scope="module")
def compiler():
    return gp.GrammarCompiler(
        BYTES, config=gp.GuidedConfig(threads=2, worker_step_ms=10_000)
    )


@pytest.fixture
def pipe(compiler):
    with gp.StepPipeline(
        compiler,
        max_slots=8,
        mode="process",
    ) as pipe:
        yield pipe


def test_tokens_that_can_not_be_taken_leave_the_step_as_it_was(pipe, monkeypatch):
    slot = pipe.add_request("one", SPECS[0])
    pipe.plan([gp.UNGUIDED, gp.UNGUIDED, slot])
    pipe.fill_mask()
    pipe.apply_mask(torch.rand(3, WIDTH))
    with pytest.raises(PipelineError, match="row 2 is planned, there are 2"):
        pipe.schedule_update(torch.tensor([1, 2]))

    def fail(step, tokens):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(
            pipe.runtime.buffers.tokens,
            "write",
            fail,
        )
        with pytest.raises(RuntimeError, match="out of memory"):
            pipe.schedule_update(torch.tensor([1, 2, 3]))
    assert pipe.tokens("one") == ()
    pipe.schedule_update(torch.tensor([1, 2, ord("y")]))
    pipe.finish_update()
    assert one_step(
        pipe,
        [slot],
        torch.rand(1, WIDTH),
    ).tolist() == [ord("e")]
    assert pipe.tokens("one") == (ord("y"), ord("e"))


def test_journals_outlast_the_ring(pipe):
    slot = pipe.add_request("one", gp.OutputSpec.regex("[a-c]{2000}"))
    generator = torch.Generator().manual_seed(1)
    rows = (
        torch.rand(
            1,
            WIDTH,
            generator=generator,
        )
        for _ in range(TOKEN_DEPTH + 300)
    )
    out = [
        int(
            one_step(
                pipe,
                [slot],
                row,
            )
        )
        for row in rows
    ]
    assert pipe.tokens("one") == tuple(out)
    assert set(bytes(out)) == set(b"abc")


def test_specs_are_compiled_once_and_in_the_background(pipe):
    first = pipe.prepare(SPECS[2])
    second = pipe.prepare(SPECS[2])
    assert first is second or first.done()
    assert first.result(60).backend == "llguidance"
    assert pipe.prepare(SPECS[2]).done()
    with pytest.raises(gp.errors.GrammarError):
        pipe.prepare(gp.OutputSpec.regex("a(?=b)")).result(60)
    for options, error, says in (
        ({"stop_token_ids": [999]}, RequestError, "stop token 999 is outside"),
        ({"start_after": "text"}, VocabularyError, "no encoder"),
    ):
        with pytest.raises(error, match=says):
            pipe.add_request("one", gp.OutputSpec.regex("a", **options))
    assert pipe.add_request("one", SPECS[0]) == 0


def test_an_idle_worker_takes_little_of_a_processor(pipe):
    slot = pipe.add_request("one", SPECS[1])
    pid = pipe.runtime.supervisor.worker_pid
    one_step(
        pipe,
        [slot],
        torch.rand(1, WIDTH),
    )
    assert pipe.phase("one") is Phase.ACTIVE
    time.sleep(1.2)

    def used():
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def share():
        before = used()
        time.sleep(1.0)
        return used() - before

    # The machine may be busy with other things, and with what ends elsewhere in this
    # process.
    assert any(share() < 0.05 for _ in range(5))


def test_closing_is_final_and_can_be_repeated(compiler):
    pipe = gp.StepPipeline(
        compiler,
        max_slots=2,
        mode="process",
    )
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
