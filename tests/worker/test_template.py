"""The template of a compiler: its children, their ends, and what requests see when all
of it ends at once."""

import gc
import os
import signal
import threading
import time

import pytest
from vocabularies import BYTES
from worker_runs import END, LONG, PAREN, Run, gone, until

import guided_plugin as gp
from guided_plugin.compiling.helper_process import Compile
from guided_plugin.compiling.template_process import MODULE, Greeting
from guided_plugin.errors import PipelineError, RequestError
from guided_plugin.grammar.table import Phase
from guided_plugin.ipc import template as template_module
from guided_plugin.ipc.channel import Channel
from guided_plugin.ipc.template import Template

HELPER = "guided_plugin.compiling.helper_process"


@pytest.fixture
def template():
    template = Template(
        MODULE,
        Greeting(
            BYTES,
            gp.GuidedConfig(threads=1),
            frozenset(),
            False,
        ),
    )
    yield template
    template.close()


def greeted(child):
    """The first answer of a helper, which has then started completely."""
    channel = Channel(child.sock)
    channel.send(Compile("llguidance", PAREN))
    return channel.wait(time.monotonic() + 60.0)[0]


def test_a_terminals_signals_are_the_hosts_and_its_share_of_processors_too(template):
    template.fork(HELPER).stop()
    assert os.getpgid(template.pid) == template.pid
    # the kernel shares out busy processors by session
    assert os.getsid(template.pid) == os.getsid(0)
    with open(f"/proc/{template.pid}/status") as status:
        ignored = next(
            int(line.split()[1], 16) for line in status if line.startswith("SigIgn")
        )
    for number in (signal.SIGINT, signal.SIGTTOU):
        assert ignored >> (number - 1) & 1


def test_children_tell_how_they_ended(template):
    template.fork(HELPER).stop()
    children = [template.fork(HELPER) for _ in range(3)]
    for child in children:
        greeted(child)
    first, second, third = children
    assert first.exit_code() is None
    os.kill(first.pid, signal.SIGTERM)
    assert first.exit_code(20.0) == -signal.SIGTERM
    second.stop()
    assert second.exit_code() in (None, -signal.SIGKILL)
    template.close()
    until(lambda: gone(third.pid))
    for child in (first, third):
        child.stop()
    with pytest.raises(PipelineError, match="it was closed"):
        template.fork(HELPER)


def test_a_thread_that_waits_for_a_child_leaves_when_the_template_is_closed(template):
    told = []

    def fork():
        try:
            template.fork(HELPER).stop()
        except PipelineError as error:
            told.append(str(error))

    thread = threading.Thread(target=fork)
    thread.start()
    until(lambda: template.pid is not None)
    template.close()
    thread.join(20)
    assert not thread.is_alive()


def helpers_of(pipe):
    """The children of a pipeline's template that are not its worker."""
    with open(
        f"/proc/{pipe.compiler.template.pid}/task/{pipe.compiler.template.pid}/children"
    ) as children:
        return {int(pid) for pid in children.read().split()} - {
            pipe.runtime.supervisor.worker_pid
        }


def large(title):
    properties = {f"p{i}": {"type": "integer", "title": "x" * 20} for i in range(300)}
    return gp.OutputSpec.json_schema(
        {"title": title, "properties": properties}, backend="llguidance"
    )


def test_all_processes_are_killed_at_once_and_service_is_back_soon(make, monkeypatch):
    pipe = make(own_template=True)
    run = Run(
        pipe,
        one=LONG,
        waiting=PAREN,
    )
    pipe.prepare(large("a")).result(60)
    run.steps(3)
    run.slowest = 0.0
    supervisor = pipe.runtime.supervisor
    pids = [pipe.compiler.template.pid, supervisor.worker_pid, *helpers_of(pipe)]
    assert len(pids) == 3
    starts = template_module._Process
    refused = []

    def starting(*arguments):
        refused.append(pipe.runtime.refusal())
        return starts(*arguments)

    monkeypatch.setattr(
        template_module,
        "_Process",
        starting,
    )
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    # no row waits for the next template: guided ones fail, and others go on
    run.steps(2)
    assert time.monotonic() - start < 1.0
    run.check(failed=["one", "waiting"])
    assert run.out["one"][-1] == END
    assert refused
    # else a request could have begun, and failed a moment later
    assert None not in refused
    with pytest.raises(
        RequestError,
        match=r"have ended, and are being started \(send the request again",
    ):
        pipe.add_request("early", LONG)
    assert 0 <= pipe.runtime.refused_for() <= 2.0
    verdict = pipe.prepare(large("b"))  # waits for the next worker
    until(lambda: pipe.runtime.refusal() is None)
    assert verdict.result(60).backend == "llguidance"
    assert len(supervisor._deaths) == 1
    again = Run(
        pipe,
        two=LONG,
        three=PAREN,
    )
    again.steps(16)
    again.check()
    assert pipe.phase("two") is Phase.DONE


def test_what_lacks_for_a_moment_is_no_reason_to_refuse_requests(monkeypatch):
    fork = Template.fork
    end = time.monotonic() + 0.3
    monkeypatch.setattr(
        Template,
        "fork",
        lambda *a, **k: (
            os.stat("/-" * (time.monotonic() < end) or "/") and fork(*a, **k)
        ),
    )
    pipe = gp.StepPipeline(
        gp.GrammarCompiler(BYTES),
        max_slots=1,
        mode="process",
    )
    assert pipe.prepare(LONG).result(60).backend == "llguidance"


def test_a_pipeline_and_its_compiler_may_be_collected_in_any_thread():
    pipe = gp.StepPipeline(
        gp.GrammarCompiler(BYTES),
        max_slots=1,
        mode="process",
    )
    pipe.prepare(LONG).result(60)
    supervisor = pipe.runtime.supervisor
    template = pipe.compiler.template.pid
    worker = supervisor.worker_pid
    served = supervisor.thread
    pipe.itself = pipe
    del supervisor
    del pipe
    thread = threading.Thread(target=gc.collect, name="guided-any")
    thread.start()
    thread.join()
    until(lambda: not served.is_alive())
    gc.collect()
    until(lambda: gone(worker) and gone(template))
