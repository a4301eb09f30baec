"""The pipeline on CUDA: no call synchronises, and the tokens are those of the CPU
twin."""

import functools
import os
import signal
import time

import pytest
import torch
from compilers import start
from worker_runs import one_step

import guided_plugin as gp
from guided_plugin.kernels import indexed_kernels
from guided_plugin.pipeline import runtime
from guided_plugin.worker.device import cuda as worker_cuda
from guided_plugin.worker.engine.runtime import WorkerRuntime

pytestmark = [
    pytest.mark.gpu,
    # torch says once that the mode it checks with is a prototype.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

END = 256
VOCABULARY = gp.Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b'{"'], [END]
)
WIDTH = 320
SPECS = [
    gp.OutputSpec.json_schema({"type": "array", "items": {"type": "boolean"}}),
    gp.OutputSpec.regex("[a-f]{3,40}"),
    gp.OutputSpec.json_schema(
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
    ),
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
]


@pytest.fixture
def pipeline():
    """Makes pipelines with their requests; ends them."""
    made = []

    def make(device, requests, mode="inline"):
        pipe = gp.StepPipeline(
            gp.GrammarCompiler(VOCABULARY), max_slots=requests, device=device, mode=mode
        )
        made.append(pipe)
        return pipe, [
            pipe.add_request(f"r{i}", SPECS[i % len(SPECS)]) for i in range(requests)
        ]

    yield make
    torch.cuda.set_sync_debug_mode("default")
    for pipe in made:
        pipe.close()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("mode", ["inline", "process"])
def test_no_call_synchronises_and_tokens_are_the_cpu_twins(pipeline, dtype, mode):
    compare_with_the_cpu(
        pipeline,
        dtype,
        mode,
        strict_sync=True,
    )


@pytest.mark.parametrize("first", [2**31 - 9, 2**32 - 9])
def test_step_numbers_wrap_on_the_device(pipeline, monkeypatch, first):
    monkeypatch.setattr(
        runtime, "WorkerRuntime", functools.partial(WorkerRuntime, first_step=first)
    )
    compare_with_the_cpu(
        pipeline,
        torch.int64,
        "process",
        strict_sync=True,
    )


def test_without_stream_operations_grammars_work_inline(pipeline, monkeypatch):
    monkeypatch.setattr(worker_cuda, "supported", lambda index: False)
    compare_with_the_cpu(
        pipeline, torch.int32, "auto", strict_sync=True, becomes="inline"
    )
    with pytest.raises(gp.errors.PipelineError, match="cannot wait for memory"):
        pipeline("cuda", 1, "process")


@pytest.mark.parametrize("mode", ["inline", "process"])
def test_tokens_may_be_written_by_a_kernel_of_the_host(pipeline, mode):
    compare_with_the_cpu(
        pipeline,
        torch.int32,
        mode,
        strict_sync=True,
        sink=True,
    )


def compare_with_the_cpu(
    pipeline, dtype, mode, *, strict_sync, sink=False, becomes=None
):
    steps = 40
    requests = 12
    cpu, slots = pipeline("cpu", requests)
    gpu, _ = pipeline("cuda", requests, mode)
    assert gpu.mode == (becomes or mode)
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        order = torch.randperm(requests, generator=generator).tolist()
        planned = [slots[i] if (i + step) % 5 else gp.UNGUIDED for i in order]
        logits = torch.randn(requests, WIDTH, generator=generator)
        there = logits.cuda()
        guided = torch.tensor(
            [row for row, slot in enumerate(planned) if slot != gp.UNGUIDED]
        ).cuda()
        lengths, total = torch.zeros(2, requests, dtype=torch.int32).cuda()
        total += 1
        torch.cuda.synchronize()
        found = []
        for pipe, rows in ((cpu, logits), (gpu, there)):
            # the first step compiles the kernel
            strict = strict_sync and pipe is gpu and step > 0
            torch.cuda.set_sync_debug_mode("error" if strict else "default")
            try:
                pipe.plan(planned)
                pipe.fill_mask()
                pipe.apply_mask(rows)
                tokens = rows.argmax(-1).to(dtype)
                if sink and pipe is gpu:
                    kernels = indexed_kernels(tokens.device)
                    kernels.take_tokens(
                        guided, lengths, total, tokens.view(-1, 1), pipe.token_sink()
                    )
                else:
                    assert not sink or pipe.token_sink() is None
                    pipe.schedule_update(tokens)
                pipe.finish_update()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            found.append(tokens)
        assert torch.equal(found[0], found[1].cpu())
        assert torch.equal(logits.view(torch.int32), there.cpu().view(torch.int32))
    for i in range(requests):
        assert gpu.tokens(f"r{i}") == cpu.tokens(f"r{i}")
        assert gpu.phase(f"r{i}") is cpu.phase(f"r{i}")
        assert gpu.request(f"r{i}").error is None


@pytest.mark.parametrize("mode", ["inline", "process"])
def test_slots_are_recycled_while_tokens_are_in_flight(pipeline, mode):
    compiler = gp.GrammarCompiler(VOCABULARY)
    pipe, slots = pipeline("cuda", 16, mode)
    for i in range(len(slots)):
        pipe.remove_request(f"r{i}")
    generator = torch.Generator("cuda").manual_seed(5)
    running = {}
    finished = 0
    count = 0
    for step in range(300):
        while len(running) < 16:
            spec = SPECS[count % len(SPECS)]
            running[f"r{count}"] = pipe.add_request(f"r{count}", spec), spec, []
            count += 1
        names = list(running)
        logits = torch.randn(
            16,
            WIDTH,
            generator=generator,
            device="cuda",
        )
        tokens = one_step(pipe, [running[name][0] for name in names], logits)
        for name, token in zip(names, tokens.tolist(), strict=True):
            _, spec, out = running[name]
            out.append(token)
            if token == END or (step + len(name)) % 37 == 0:
                assert all(map(start(compiler, spec).accept, out))
                pipe.remove_request(name)
                del running[name]
                finished += 1
    assert finished > 100


def test_a_stopped_worker_does_not_hang_the_device():
    compiler = gp.GrammarCompiler(
        VOCABULARY, config=gp.GuidedConfig(worker_step_ms=500)
    )
    with gp.StepPipeline(
        compiler,
        max_slots=2,
        device="cuda",
        mode="process",
    ) as pipe:
        slots = [pipe.add_request("bad", SPECS[1]), gp.UNGUIDED]
        logits = torch.randn(2, WIDTH, device="cuda")
        one_step(pipe, slots, logits.clone())
        torch.cuda.synchronize()
        os.kill(pipe.runtime.supervisor.worker_pid, signal.SIGSTOP)
        begun = time.monotonic()
        masked = logits.clone()
        # enqueued: the device waits, this thread doesn't
        tokens = one_step(pipe, slots, masked)
        assert time.monotonic() - begun < 0.3
        torch.cuda.synchronize()
        assert time.monotonic() - begun > 0.3
        # Another worker has filled the masks.
        assert tokens[0].item() in range(ord("a"), ord("g"))
        assert torch.equal(masked[1], logits[1])
        assert pipe.request("bad").error is None
        assert pipe.metrics().worker.restarts == 1
        pipe.add_request("next", SPECS[3])
        assert chr(one_step(pipe, [gp.UNGUIDED, 1], logits.clone())[1].item()) in "ynm"


def test_a_killed_worker_is_replaced_while_the_device_waits():
    compiler = gp.GrammarCompiler(VOCABULARY)
    with gp.StepPipeline(
        compiler,
        max_slots=2,
        device="cuda",
        mode="process",
    ) as pipe:
        slot = pipe.add_request("one", SPECS[1])
        out = []
        for step in range(12):
            if step in (4, 8):
                os.kill(pipe.runtime.supervisor.worker_pid, signal.SIGKILL)
            out.append(one_step(pipe, [slot], torch.randn(1, WIDTH, device="cuda")))
        out = [tokens.item() for tokens in out]
        assert pipe.request("one").error is None
        end = out.index(END) + 1 if END in out else len(out)
        assert pipe.tokens("one") == tuple(out[:end])
        assert pipe.metrics().worker.restarts == 2


def test_beside_a_forward_pass_in_a_cuda_graph(pipeline):
    pipe, slots = pipeline("cuda", 8, "process")
    weights = torch.randn(WIDTH, WIDTH, device="cuda")
    state = torch.randn(8, WIDTH, device="cuda")
    logits = torch.empty(8, WIDTH, device="cuda")
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        torch.mm(state, weights, out=logits)
    torch.cuda.current_stream().wait_stream(warm_up)
    one_step(pipe, slots, logits.clone())  # compiles the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(state, weights, out=logits)
    out = []
    for _ in range(200):
        state.normal_()
        graph.replay()
        out.append(one_step(pipe, slots, logits).clone())
    found = torch.stack(out).T.tolist()
    compiler = gp.GrammarCompiler(VOCABULARY)
    for i, tokens in enumerate(found):
        spec = SPECS[i % len(SPECS)]
        counted = pipe.tokens(f"r{i}")[1:]
        assert counted == tuple(tokens[: len(counted)])
        assert all(map(start(compiler, spec).accept, pipe.tokens(f"r{i}")))
    worker = pipe.metrics().worker
    assert worker.steps == 201
    assert sum(pipe.runtime.buffers.masks.waits.counts()[:-1]) >= 2
    assert worker.exposed_wait >= 0.0
