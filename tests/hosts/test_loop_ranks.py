"""The reference loop on several ranks: processes with a gloo group, each with the whole model."""

import json
import os
import signal

import pytest
from rank_process import finish, shared_memory, started
from worker_runs import gone, until

import guided_plugin as gp
from guided_plugin.demo import DEMOS, MODEL_DIR

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, time
import torch, torch.distributed as dist
import guided_plugin as gp
from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.worker.ranks import group

rank, size, store, mode, pause, rounds, where = sys.argv[1:]
group.machine = lambda: where[int(rank)]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=int(rank), world_size=int(size))

class LateLoop(gp.DecodeLoop):
    def step(self, batch, index):
        time.sleep(float(pause))
        super().step(batch, index)

tokenizer, model = load_tokenizer(MODEL_DIR), load_model(MODEL_DIR)
config = gp.GuidedConfig(threads=1, worker_step_ms=60_000)
compiler = gp.GrammarCompiler(model_vocabulary(tokenizer, model), config=config)
specs = [*(gp.OutputSpec.json_schema(demo.schema) for demo in DEMOS), gp.OutputSpec.regex("a(?=b)c")]
prompts = [tokenizer.encode(demo.prompt) for demo in (*DEMOS, DEMOS[0])]
loop = LateLoop(model, compiler, mode=mode, ranks=gp.TorchRanks())
supervisor = getattr(loop.pipeline.runtime, "supervisor", None)
dist.barrier()  # the worker starts meanwhile
loop.pipeline.runtime.ready.wait(300)
pids = [os.getpid()] + ([supervisor.worker_pid, supervisor._server.pid] if supervisor else [])
print(json.dumps(pids), flush=True)
for number in range(int(rounds)):
    sampling = gp.Sampling(temperature=1.0 if number % 2 else 0.0, seed=number)
    outputs = loop.run(prompts, specs, max_new_tokens=60, sampling=sampling)
    print(json.dumps([[one.tokens, one.stopped, str(one.error or "")] for one in outputs]), flush=True)
loop.pipeline.close()
dist.destroy_process_group()
"""


@pytest.fixture
def start(tmp_path):
    """Starts the ranks of a model; none outlives its test."""
    ranks = []

    def start(size, mode, *, late=-1, rounds=2, where="aaaa"):
        """`where`: a letter for the machine of each rank."""
        for rank in range(size):
            pause = "0.02" if rank == late else "0"
            names = [str(rank), str(size), str(tmp_path / "store"), mode, pause, str(rounds), where]
            ranks.append(started("-c", SCRIPT, *names))
        return ranks

    yield start
    for rank in ranks:
        rank.kill()
        rank.communicate()


def one_rank():
    """What the loop makes of the same prompts by itself."""
    from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary

    tokenizer, model = load_tokenizer(MODEL_DIR), load_model(MODEL_DIR)
    compiler = gp.GrammarCompiler(model_vocabulary(tokenizer, model))
    loop = gp.DecodeLoop(model, compiler, mode="inline")
    specs = [gp.OutputSpec.json_schema(demo.schema) for demo in DEMOS]
    prompts = [tokenizer.encode(demo.prompt) for demo in DEMOS]
    found = loop.run(prompts, specs, max_new_tokens=60)
    return [[list(one.tokens), one.stopped, ""] for one in found]


@pytest.mark.parametrize(
    ("size", "mode", "late", "where"),
    [
        (2, "inline", 1, "aa"),
        (2, "process", 0, "aa"),
        (4, "process", 2, "aaaa"),
        (2, "inline", 1, "ab"),
        (4, "process", 2, "aabb"),
    ],
)
def test_all_ranks_produce_the_same(start, size, mode, late, where):
    """As one rank does, greedy and seeded, also where one of them is always late, and on several machines."""
    found = [lines[1:] for lines in finish(start(size, mode, late=late, where=where))[0]]
    assert found[0][0][:-1] == one_rank()
    for other in found[1:]:
        assert [[one[:2] for one in batch] for batch in other] == [[one[:2] for one in b] for b in found[0]]
        assert all(one[2] == "" for batch in other for one in batch)
    for batch in found[0]:
        assert batch[-1][:2] == [[], True]
        assert "regex: " in batch[-1][2]


@pytest.mark.parametrize(
    ("mode", "victim", "where"),
    [
        ("inline", 0, "aa"),
        ("process", 0, "aa"),
        ("process", 1, "aa"),
        ("process", 0, "ab"),
        ("inline", 1, "ab"),
    ],
)
def test_a_rank_is_killed(start, mode, victim, where):
    """Nothing is left of it: neither memory nor processes. The others do not wait for it."""
    before = shared_memory()
    ranks = start(2, mode, rounds=100_000, where=where)
    pids = [json.loads(rank.stdout.readline()) for rank in ranks]
    for rank in ranks:
        rank.stdout.readline()
    ranks[victim].send_signal(signal.SIGKILL)
    ranks[victim].wait(60)
    if victim == 0:
        until(lambda: all(map(gone, pids[0])), 60)
        _, errors = ranks[1].communicate(timeout=120)
        assert ranks[1].returncode == 1
        assert "rank 0 has ended" in errors  # "or cannot be reached any more", on another machine
    else:
        for _ in range(3):
            assert ranks[0].stdout.readline()
        ranks[0].terminate()
        ranks[0].wait(60)
        until(lambda: all(map(gone, pids[0])), 60)
    assert shared_memory() == before


def test_a_worker_is_killed(start):
    """Another one takes its place, and no rank notices."""
    ranks = start(2, "process", late=0, rounds=3)
    pids = json.loads(ranks[0].stdout.readline())
    os.kill(pids[1], signal.SIGKILL)
    (first, (_, *second)), log = finish(ranks)
    first, second = ([[one[:2] for one in batch] for batch in batches] for batches in (first, second))
    assert first == second
    assert first[0][:-1] == [one[:2] for one in one_rank()]
    assert "the grammar worker was ended by SIGKILL" in log
