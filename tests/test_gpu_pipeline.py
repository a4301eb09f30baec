"""The pipeline on CUDA: no call synchronises, and the tokens are those of the CPU twin."""

import pytest
import torch

import guided_plugin as gp

pytestmark = [
    pytest.mark.gpu,
    # torch says once that the mode it checks with is a prototype.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

END = 256
VOCABULARY = gp.Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>", b'{"'], [END])
WIDTH = 320
SPECS = [
    gp.OutputSpec.json_schema({"type": "array", "items": {"type": "boolean"}}),
    gp.OutputSpec.regex("[a-f]{3,40}"),
    gp.OutputSpec.json_schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}),
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
]


def pipeline(device, requests):
    pipe = gp.StepPipeline(gp.GrammarCompiler(VOCABULARY), max_slots=requests, device=device)
    slots = [pipe.add_request(f"r{i}", SPECS[i % len(SPECS)]) for i in range(requests)]
    return pipe, slots


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_no_call_synchronises_and_tokens_are_the_cpu_twins(dtype):
    steps, requests = 40, 12
    cpu, slots = pipeline("cpu", requests)
    gpu, _ = pipeline("cuda", requests)
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        order = torch.randperm(requests, generator=generator).tolist()
        planned = [slots[i] if (i + step) % 5 else gp.UNGUIDED for i in order]
        logits = torch.randn(requests, WIDTH, generator=generator)
        there = logits.cuda()
        torch.cuda.synchronize()
        found = []
        for pipe, rows in ((cpu, logits), (gpu, there)):
            strict = pipe is gpu and step > 0  # the first step compiles the kernel
            torch.cuda.set_sync_debug_mode("error" if strict else "default")
            try:
                pipe.plan(planned)
                pipe.fill_mask()
                pipe.apply_mask(rows)
                tokens = rows.argmax(-1).to(dtype)
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


def test_slots_are_recycled_while_tokens_are_in_flight():
    compiler = gp.GrammarCompiler(VOCABULARY)
    pipe = gp.StepPipeline(compiler, max_slots=16, device="cuda")
    generator = torch.Generator("cuda").manual_seed(5)
    running, finished, count = {}, 0, 0
    for step in range(300):
        while len(running) < 16:
            spec = SPECS[count % len(SPECS)]
            running[f"r{count}"] = pipe.add_request(f"r{count}", spec), spec, []
            count += 1
        names = list(running)
        logits = torch.randn(16, WIDTH, generator=generator, device="cuda")
        pipe.plan([running[name][0] for name in names])
        pipe.fill_mask()
        pipe.apply_mask(logits)
        tokens = logits.argmax(-1)
        pipe.schedule_update(tokens)
        pipe.finish_update()
        for name, token in zip(names, tokens.tolist(), strict=True):
            _, spec, out = running[name]
            out.append(token)
            if token == END or (step + len(name)) % 37 == 0:
                grammar = compiler.compile(spec)
                matcher = compiler.backend(grammar.backend).start(grammar, (END,))
                assert all(matcher.accept(t) for t in out)
                pipe.remove_request(name)
                del running[name]
                finished += 1
    assert finished > 100
