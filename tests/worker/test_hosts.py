"""Hosts of all kinds: forked, spawned, daemonic, killed, exiting. Nothing of a worker
outlasts them."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from worker_runs import gone, until

pytestmark = pytest.mark.slow

PREAMBLE = """
import json, os, pathlib, sys, time, torch
import guided_plugin as gp

END = 256
VOCABULARY = gp.Vocabulary.from_tokens([*(bytes([b]) for b in range(256)), b"</s>"], [END])

def make(**options):
    compiler = gp.GrammarCompiler(VOCABULARY, config=gp.GuidedConfig(threads=1, **options))
    return gp.StepPipeline(compiler, max_slots=4, mode="process")

def decode(pipe, slot, steps):
    out = []
    for _ in range(steps):
        logits = torch.rand(1, 260)
        pipe.plan([slot]); pipe.fill_mask(); pipe.apply_mask(logits)
        tokens = logits.argmax(-1)
        pipe.schedule_update(tokens); pipe.finish_update()
        out += tokens.tolist()
    return bytes(out).decode()

def pids(pipe):
    supervisor = pipe.runtime.supervisor
    return [supervisor.worker_pid, pipe.compiler.template.pid]

ABC = gp.OutputSpec.regex("[a-c]{40}", backend="llguidance")
LATE = gp.OutputSpec.choice(["late"])

def say(**values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture
def run(tmp_path):
    """Starts hosts, each with a script of its own; none outlives its test."""
    started = []

    def run(body):
        script = tmp_path / f"host{len(started)}.py"
        script.write_text(PREAMBLE + textwrap.dedent(body))
        command = [sys.executable, "-W", "error::ResourceWarning", str(script)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, **pipes))
        return started[-1]

    yield run
    for process in started:
        with process:
            process.kill()


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return [json.loads(line) for line in out.splitlines()], err


def assert_gone(pids):
    until(lambda: all(map(gone, pids)), 3.0)


@pytest.mark.parametrize("how", ["raises", "hard exit"])
def test_the_interpreter_ends_in_the_middle_of_a_step(run, how):
    end, code = {
        "raises": ("raise SystemError('oops')", 1),
        "hard exit": ("os._exit(4)", 4),
    }[how]
    process = run(
        f"""
        pipe = make()
        slot = pipe.add_request("one", ABC)
        say(text=decode(pipe, slot, 3), pids=pids(pipe))
        pipe.plan([slot])
        pipe.fill_mask()
        {end}
        """
    )
    said, err = finish(process)
    assert process.returncode == code
    assert set(said[0]["text"]) <= set("abc")
    assert "Exception ignored" not in err
    assert ("oops" in err) == (how == "raises")
    assert_gone(said[0]["pids"])


def test_a_killed_host_takes_its_workers_along(run):
    process = run(
        """
        pipe = make()
        slot = pipe.add_request("one", ABC)
        say(text=decode(pipe, slot, 3), pids=pids(pipe))
        time.sleep(60)
        """
    )
    said = json.loads(process.stdout.readline())
    # nothing that it could do itself would help
    os.kill(said["pids"][0], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=10)
    assert_gone(said["pids"])
    assert not [
        name for name in os.listdir("/dev/shm") if name.startswith("guided_plugin")
    ]


def test_a_forked_child_leaves_its_parents_pipeline_alone(run):
    process = run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # this host does fork with threads
        pipe = make()
        slot = pipe.add_request("one", ABC)
        decode(pipe, slot, 2)
        pipe.runtime.send = lambda *arguments, **options: None
        pipe.prepare(LATE)  # no worker answers
        del pipe.runtime.send
        child = os.fork()
        if child == 0:
            for call in (lambda: pipe.plan([slot]), lambda: pipe.add_request("two", ABC),
                         lambda: pipe.tokens("one"), lambda: pipe.prepare(LATE).result(60)):
                try:
                    call()
                except gp.GuidedError as error:
                    say(error=str(error))
            pipe.close()
            own = make()
            slot = own.add_request("mine", ABC)
            say(text=decode(own, slot, 3), pids=pids(own))
            sys.exit(0)  # with everything that Python does at exit
        _, status = os.waitpid(child, 0)
        say(status=status, text=decode(pipe, slot, 3), pids=pids(pipe), error=str(pipe.request("one").error))
        """
    )
    said, err = finish(process)
    assert process.returncode == 0, err
    *errors, child, parent = said
    assert len(errors) == 4
    assert all("forked from" in line["error"] for line in errors)
    assert set(child["text"]) <= set("abc")
    assert parent["status"] == 0
    assert parent["error"] == "None"
    assert len(parent["text"]) == 3
    assert_gone(child["pids"] + parent["pids"])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_daemonic_child_of_multiprocessing_has_workers_of_its_own(run, method):
    process = run(
        f"""
        import multiprocessing

        def engine():
            pipe = make()
            slot = pipe.add_request("one", ABC)
            say(text=decode(pipe, slot, 3), pids=pids(pipe), name=__name__)

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            child = context.Process(target=engine, daemon=True)
            child.start()
            child.join()
            sys.exit(child.exitcode)
        """
    )
    said, err = finish(process)
    assert process.returncode == 0, err
    assert [line["name"] for line in said] == [
        "__main__" if method == "fork" else "__mp_main__"
    ]
    assert set(said[0]["text"]) <= set("abc")
    assert_gone(said[0]["pids"])


@pytest.mark.parametrize(
    "where", ["anywhere", pytest.param("beside CUDA", marks=pytest.mark.gpu)]
)
def test_what_workers_are_forked_from_has_one_thread(run, where):
    """Libraries start threads when they are imported; where there is CUDA its driver
    does."""
    if where == "beside CUDA" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no CUDA device")
    process = run(
        """
        pipe = make()
        pipe.add_request("one", ABC)
        tasks = pathlib.Path(f"/proc/{pids(pipe)[1]}/task")
        say(threads=[(task / "comm").read_text() for task in tasks.iterdir()])
        pipe.close()
        """
    )
    said, err = finish(process)
    assert process.returncode == 0, err
    assert len(said[0]["threads"]) == 1, said
    assert "fork" not in err
