"""xgrammar is loaded without taking CUDA from others, and it gets EBNF alone."""

import os
import subprocess
import sys

import pytest

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec import OutputSpec


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec.json_schema({"type": "string"}, backend="xgrammar"),
        OutputSpec.json_object(backend="xgrammar"),
        OutputSpec.regex("a", backend="xgrammar"),
        OutputSpec.choice(["a"], backend="xgrammar"),
        OutputSpec.grammar('start: "a"', "lark", backend="xgrammar"),
        OutputSpec.structural_tag(
            {"format": {"type": "const_string", "value": "a"}}, backend="xgrammar"
        ),
    ],
    ids=lambda spec: spec.kind,
)
def test_other_languages_are_refused(byte_compiler, spec):
    with pytest.raises(UnsupportedSpecError, match="is not enforced by xgrammar") as it:
        byte_compiler.compile(spec)
    assert it.value.where == "backend"
    assert it.value.hint.startswith("leave the backend out: llguidance enforces ")
    assert not byte_compiler.is_quick(spec)


LOADED_BY_FOUR = """
import os
import threading

from guided_plugin.grammar.xgrammar import backend

all_there = threading.Barrier(4)

def load():
    all_there.wait()
    found.append(backend._loaded().checked)

found = []
threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found, os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
"""


@pytest.mark.parametrize("before", [None, "0"])
def test_loading_xgrammar_leaves_cuda_to_processes_that_are_forked_later(
    before, tmp_path
):
    """It asks `torch.cuda.is_available`, which takes CUDA from them unless the variable
    is 1: vLLM's engine would not start. Several threads may load it at the same time;
    each puts the environment back."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    (tmp_path / "xgrammar.py").write_text(
        f"import os, time\ntime.sleep(0.1)\nchecked = os.environ.get({name!r})\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != name}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    if before is not None:
        environment[name] = before
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_FOUR],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == f"{['1'] * 4} {before}"
