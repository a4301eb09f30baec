"""One rank of several as a process of its own: makes steps of random logits and prints
what came of them.

    python rank_process.py '{"rank": 0, "size": 2, "store": "/tmp/x", "device": "cuda", ...}'

All ranks have the same logits, as tensor-parallel ranks have. Nothing waits for a step,
so hosts run ahead of their devices.
"""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

import guided_plugin as gp
from guided_plugin.kernels import mask_rows
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.ranks import group

END = 256
VOCABULARY = gp.Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b'{"'], [END]
)
WIDTH = 320
REQUESTS = 6
SPECS = [
    gp.OutputSpec.json_schema({"type": "array", "items": {"type": "boolean"}}),
    gp.OutputSpec.regex("[a-f]*"),
    gp.OutputSpec.json_schema(
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
    ),
    gp.OutputSpec.regex("a(?=b)c"),  # does not compile: closed on all ranks
]
FORWARD = 300_000
"""Clock cycles of the device for what a model would do: some tenths of a
millisecond."""


class Steps:
    """Steps by number, the same at every rank."""

    def __init__(self, pipe, device, *, late=0.0, late_cycles=0):
        self.pipe = pipe
        self.device = device
        self._late = late
        self._late_cycles = late_cycles
        self._slots = [
            pipe.add_request(f"r{i}", SPECS[i % len(SPECS)]) for i in range(REQUESTS)
        ]
        self._sampled = torch.full(
            (REQUESTS,), NO_TOKEN, dtype=torch.int64, device=device
        )

    def step(self, number):
        """What is left of the logits, and the tokens, on the device."""
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(REQUESTS, WIDTH, generator=generator).to(self.device)
        if self.device == "cuda":
            torch.cuda._sleep(FORWARD)
        time.sleep(self._late)
        if self.pipe.drafts:
            return self._judge(logits, generator)
        order = torch.randperm(REQUESTS, generator=generator).tolist()
        planned = [self._slots[i] if (i + number) % 5 else gp.UNGUIDED for i in order]
        if number % 3:  # mostly a plan lasts for some steps
            planned = self._slots
        self.pipe.plan(planned)
        self._be_late()
        self.pipe.fill_mask()
        self.pipe.apply_mask(logits)
        tokens = logits.argmax(-1)
        self.pipe.schedule_update(tokens)
        self.pipe.finish_update()
        return logits, tokens

    def _judge(self, logits, generator):
        drafts = self.pipe.drafts
        none = torch.full((REQUESTS * drafts,), NO_TOKEN, dtype=torch.int64)
        proposed = torch.randint(0, END, (REQUESTS * drafts,), generator=generator)
        tokens = torch.cat([self._sampled, torch.cat([none, proposed]).to(self.device)])
        self._be_late()
        step = self.pipe.send_drafts(self._slots, tokens)
        masks = self.pipe.draft_masks(step, logits)
        logits = logits.repeat(drafts + 1, 1)
        rows = torch.arange(len(logits), dtype=torch.int32, device=self.device)
        mask_rows(logits, masks, rows, VOCABULARY.size)
        self._sampled = logits[:REQUESTS].argmax(-1)
        return logits, self._sampled

    def _be_late(self):
        """Hold up the stream that reads the masks."""
        if self._late_cycles and self.device == "cuda":
            with torch.cuda.stream(self.pipe.runtime.buffers.masks.side_stream):
                torch.cuda._sleep(self._late_cycles)


def compiler():
    return gp.GrammarCompiler(
        VOCABULARY, config=gp.GuidedConfig(threads=1, worker_step_ms=60_000)
    )


def told(logits, tokens):
    """A step as it is compared."""
    digest = hashlib.sha256(
        logits.cpu().view(torch.int32).numpy().tobytes()
    ).hexdigest()
    return [digest[:16], tokens.tolist()]


def started(*command):
    """A rank: Python with these arguments, and the package that the test has."""
    folders = [
        pathlib.Path(gp.__file__).parent.parent,
        os.environ.get("PYTHONPATH", ""),
    ]
    return subprocess.Popen(
        [sys.executable, *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(ranks):
    """The lines that each rank printed from here on. All ended well."""
    results = [rank.communicate(timeout=500) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), [
        errors[-3000:] for _, errors in results
    ]
    return [[json.loads(line) for line in out.splitlines()] for out, _ in results]


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "guided" in name}


def main(
    rank,
    size,
    store,
    device,
    steps,
    mode="process",
    drafts=0,
    late=0.0,
    late_cycles=0,
    where="aa",
    kill=None,
):
    """`where`: a letter for the machine of each rank. `kill`: the step before which the
    worker is killed."""
    torch.set_num_threads(1)
    group.machine = lambda: where[rank]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
    pipe = gp.StepPipeline(
        compiler(),
        max_slots=REQUESTS,
        device=device,
        mode=mode,
        drafts=drafts,
        ranks=gp.TorchRanks(),
    )
    supervisor = getattr(pipe.runtime, "supervisor", None)
    workers = []
    if supervisor is not None:
        pipe.prepare(gp.OutputSpec.choice(["a"])).result(300)
        workers = [supervisor.worker_pid, pipe.compiler.template.pid]
    print(json.dumps([os.getpid(), *workers]), flush=True)
    made = Steps(pipe, device, late=late, late_cycles=late_cycles)
    dist.barrier()
    if steps is None:
        number = 0
        while True:
            _, tokens = made.step(number)
            if number % 20 == 0:
                print(json.dumps([number, tokens.tolist()]), flush=True)
            number += 1
    found = []
    for number in range(steps):
        if number == kill:
            os.kill(supervisor.worker_pid, signal.SIGKILL)
        found.append(made.step(number))
    for one in found:
        print(json.dumps(told(*one)), flush=True)
    pipe.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
