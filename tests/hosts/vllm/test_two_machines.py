"""vLLM with a rank on each of two machines: the second one is apart by its own
namespace of process ids."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from vllm import LLM
from vllm_ranks import OPTIONS, facts, requests
from vllm_server import installed
from vllm_support import PATIENT

from benchmarks.server.launch import free_port
from guided_plugin.demo import MODEL_DIR

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        subprocess.run(
            ["unshare", "--pid", "--fork", "true"], check=False, capture_output=True
        ).returncode
        != 0,
        reason="no right to make a namespace",
    ),
]
OWN = {
    **OPTIONS,
    "additional_config": {"guided_plugin": {"mode": "process", **PATIENT}},
}
SECOND = """
import json, sys
from vllm.entrypoints.cli.main import main

sys.argv = ["vllm", *json.loads(sys.argv[1])]
main()
"""


@pytest.fixture
def parallel():
    """The options that both machines share."""
    return {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "nnodes": 2,
        "master_addr": "127.0.0.1",
        "master_port": free_port(),
    }


@pytest.fixture
def second(parallel, tmp_path):
    """The process of the other machine, which ends with the test."""
    command = ["serve", str(MODEL_DIR), "--headless", "--node-rank", "1"]
    for name, value in (OWN | parallel).items():
        command.append("--" + name.replace("_", "-"))
        if value is not True:
            command.append(json.dumps(value) if isinstance(value, dict) else str(value))
    here = pathlib.Path(__file__)
    folders = [
        str(installed(tmp_path / "installed")),
        str(here.parents[3]),
        str(here.parents[2] / "support"),
        str(here.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    log = tmp_path / "second.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*apart, sys.executable, "-c", SECOND, json.dumps(command)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    yield
    process.kill()
    process.wait()
    print(log.read_text()[-4000:])


def kill_worker(worker):
    """The grammar worker of the second machine."""
    if worker.rank == 1:
        os.kill(facts(worker)["worker"], signal.SIGKILL)


@pytest.mark.usefixtures("second")
def test_both_machines_sample_the_same(parallel, expected):
    """And what one rank samples by itself, also after a worker has died: nothing that
    rank 0 compares differs."""
    llm = LLM(str(MODEL_DIR), node_rank=0, **OWN, **parallel)
    ranks = llm.collective_rpc(facts)
    assert [rank["runtime"] for rank in ranks] == ["WorkerRuntime"] * 2
    for _ in range(2):
        outputs = llm.generate(*requests(), use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        llm.collective_rpc(kill_worker)
    assert llm.collective_rpc("guided_metrics")[0][0]["failed"] == 0
    _, other = llm.collective_rpc(facts)
    assert other["worker"] != ranks[1]["worker"]
