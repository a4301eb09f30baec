"""The reference loop on several ranks: processes with a gloo group, each with the whole model."""

import pytest
from rank_process import finish, started

import guided_plugin as gp
from guided_plugin.demo import DEMOS, MODEL_DIR

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
import guided_plugin as gp
from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.worker.ranks import group

rank, size, store, mode, pause, where = sys.argv[1:]
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
if getattr(loop.pipeline.runtime, "supervisor", None):
    loop.pipeline.prepare(specs[0]).result(300)
dist.barrier()
for number in range(2):
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

    def start(size, mode, *, late=-1, where="aaaa"):
        """`where`: a letter for the machine of each rank."""
        for rank in range(size):
            pause = "0.02" if rank == late else "0"
            names = [str(rank), str(size), str(tmp_path / "store"), mode, pause, where]
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
    found = finish(start(size, mode, late=late, where=where))
    assert found[0][0][:-1] == one_rank()
    for other in found[1:]:
        assert [[one[:2] for one in batch] for batch in other] == [[one[:2] for one in b] for b in found[0]]
        assert all(one[2] == "" for batch in other for one in batch)
    for batch in found[0]:
        assert batch[-1][:2] == [[], True]
        assert "regex: " in batch[-1][2]
