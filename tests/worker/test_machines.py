"""Ranks on several machines, here threads that are told so: each machine has grammars,
and where they sample other tokens, requests fail at rank 0."""

import os

import pytest
import torch
from rank_threads import (
    WIDTH,
    on_ranks,
    pipeline,
    sharing,
    step,
)
from vocabularies import BYTES
from worker_runs import (
    END,
    LONG,
    faulty,
    until,
)

import guided_plugin as gp
from guided_plugin.errors import PipelineError, RequestError
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.ranks import machines

OPEN = gp.OutputSpec.regex("[a-z]{40}")
ONE = gp.OutputSpec.choice(["abcdefghijklmnopqrstuvwxyz"])
"""One output: what is sampled does not follow from the logits."""
FOUND = "on another machine, sampled another token in step"


@pytest.fixture
def share(monkeypatch):
    monkeypatch.setattr(
        machines,
        "_CLOSE_SECONDS",
        0.1,
    )
    with sharing() as share:
        yield share


def add(pipes, **specs):
    for pipe in pipes:
        for name, spec in specs.items():
            pipe.add_request(name, spec)


def steps(pipes, number, slots=(0, 1)):
    """A step of each; the tokens."""
    return [
        step(
            pipe,
            slots,
            number,
        )[1]
        for pipe in pipes
    ]


def found(pipe):
    """How often another machine was found to differ, since the last step."""
    return pipe.runtime.machines._found.qsize()


def test_what_must_not_be_noticed(share):
    """Workers are killed on either machine, a request is preempted and comes back."""
    pipes = share("aab", "process")
    add(
        pipes,
        one=ONE,
        open=OPEN,
    )
    tokens = []
    for number in range(20):
        if number in (7, 13):
            os.kill(pipes[number % 7 // 3].runtime.supervisor.worker_pid, 9)
        sampled = steps(pipes, number)
        assert sampled == sampled[:1] * 3
        _, token = sampled[0]
        tokens.append(token)
        if number % 5 == 4:
            for pipe in pipes:
                pipe.remove_request("open")
                assert (
                    pipe.add_request(
                        "open",
                        OPEN,
                        tokens=tokens,
                    )
                    == 1
                )
    assert [pipe.metrics().failed for pipe in pipes] == [0, 0, 0]
    restarts = [pipes[at].metrics().worker.restarts for at in (0, 2)]
    assert restarts == [1, 1]


@pytest.mark.parametrize(
    "back",
    [True, False],
    ids=["preempted", "aborted"],
)
def test_a_request_that_left_before_that_is_known(share, mode, back, caplog):
    """It is told, and fails if it is back; no other one in its slot does."""
    pipes = share("ab", mode)
    near = pipes[0]
    add(pipes, old=OPEN)
    tokens = [
        step(
            pipe,
            [0],
            number,
        )[1]
        for number, pipe in enumerate(pipes)
    ]
    name = "old" if back else "new"
    for pipe in pipes:
        pipe.remove_request("old")
        assert (
            pipe.add_request(
                name,
                OPEN,
                tokens=tokens[0] if back else (),
            )
            == 0
        )
    until(lambda: found(near) == 1)
    step(
        near,
        [0],
        2,
    )
    assert (near.request(name).error is not None) == back
    assert back or f"request old: rank 1, {FOUND} 1" in caplog.text


@pytest.mark.parametrize(
    ("at", "action", "says"),
    [
        (1, "hang", FOUND),
        (1, "raise", FOUND),
        (0, "hang", "was not done in"),
        (0, "raise", "on request"),
    ],
)
def test_a_row_that_fails_on_one_machine_only(make, tmp_path, caplog, at, action, says):
    """It is late, or its backend raises: it is closed at rank 0 too, and its machine's
    log says why. Others go on."""
    alone = make(row_ms=40)  # before threads ask for its template
    pipes = on_ranks("ab", lambda group: make(row_ms=40, ranks=group))
    bad = faulty(f"fill 3 {action}", tmp_path / "done")
    add(
        [*pipes, alone],
        good=LONG,
        bad=bad,
    )
    order = [pipes[at], pipes[1 - at], alone]  # who comes first finds no marker
    rows = []
    for number in range(12):
        sampled = dict(
            zip(
                order,
                steps(order, number),
                strict=True,
            )
        )
        rows.append(sampled[pipes[0]])
        assert rows[-1][0] == sampled[pipes[1]][0] == sampled[alone][0]
        if number == 2 and at == 1:
            until(lambda: found(pipes[0]) == 1)
    assert says in str(pipes[0].request("bad").error)
    assert [row[1] for row in rows[4:]] == [END] * 8
    assert at == 0 or "request bad: " in caplog.text


def test_a_machine_that_refuses_requests(share, caplog):
    """Its worker died too often: they fail at rank 0, and its log says why."""
    pipes = share("ab", "process")
    near, far = pipes
    add(pipes, open=OPEN)
    steps(
        pipes,
        0,
        [0],
    )
    far.runtime.refuse(RequestError("the grammar worker ended 3 times"), 60)
    add(pipes, late=OPEN)
    assert steps(pipes, 1)[1] == [END, END]
    until(
        lambda: (
            step(
                near,
                [0, 1],
                2,
            )[1]
            == [END, END]
        )
    )
    for name in ("open", "late"):
        assert FOUND in str(near.request(name).error)
    assert "request open: the grammar worker ended 3 times" in caplog.text


def test_drafts_on_two_machines(share, mode):
    """They take the same drafts; where one takes fewer, the request fails."""
    pipes = share(
        "ab",
        mode,
        drafts=2,
    )
    near, far = pipes
    add(pipes, one=ONE)

    def sent(pipe, *tokens):
        drafts = torch.tensor([*tokens, NO_TOKEN, NO_TOKEN])
        sent = pipe.send_drafts([0], drafts)
        return pipe.draft_masks(sent, torch.zeros(3, WIDTH))

    for tokens in (
        [NO_TOKEN] * 3,
        [*b"abc"],
        [ord("d"), NO_TOKEN, NO_TOKEN],
    ):
        assert torch.equal(sent(near, *tokens), sent(far, *tokens))
    sent(near, *b"efg")
    sent(
        far,
        *b"ef",
        NO_TOKEN,
    )
    until(lambda: found(near) == 1)
    sent(near, *[NO_TOKEN] * 3)
    assert f"{FOUND} 4" in str(near.request("one").error)


def test_machines_that_plan_other_rows(share, mode):
    pipes = share("ab", mode)
    near, far = pipes
    add(
        pipes,
        open=OPEN,
        one=ONE,
    )
    step(
        near,
        [0, 1],
        1,
    )
    step(
        far,
        [1, 0],
        1,
    )
    until(lambda: near.runtime.machines._lost is not None)
    with pytest.raises(PipelineError, match="rank 1 plans different steps"):
        step(
            near,
            [0, 1],
            2,
        )


@pytest.mark.parametrize(("name", "at"), [("send", 1), ("receive", 0)])
def test_a_machine_that_cannot_be_reached_ends_the_model(share, name, at):
    """The steps of its ranks can't be checked any more."""

    def broken(group):
        def fails(*_):
            raise RuntimeError("Connection closed by peer")

        setattr(
            group,
            name,
            fails,
        )
        return group

    pipe = share("ab", change=broken)[at]
    add([pipe], open=OPEN)
    step(
        pipe,
        [0],
        1,
    )
    until(lambda: pipe.runtime.machines._lost is not None)
    for _ in range(2):
        with pytest.raises(PipelineError, match="go along: Connection closed by peer"):
            step(
                pipe,
                [0],
                2,
            )


def test_machines_with_other_options_are_refused():
    def make(group):
        config = gp.GuidedConfig(whitespace=("compact", "spaced")[group.rank])
        compiler = gp.GrammarCompiler(BYTES, config=config)
        return gp.StepPipeline(
            compiler,
            max_slots=1,
            ranks=group,
        )

    for told in on_ranks("ab", make):
        assert "rank 1: its package, vocabulary or options are not" in str(told)


def test_two_pipelines_of_one_group():
    """Each hears of its own steps."""
    made = on_ranks(
        "ab", lambda group: [pipeline(mode="inline", ranks=group) for _ in "ab"]
    )
    both = [*zip(*made, strict=True)]
    first, second = both
    for number, pipes in enumerate((first, second, first)):
        add(pipes, **{f"r{number}": OPEN})
        steps(
            pipes,
            number,
            [number // 2],
        )
    for pipe in (*first, *second):
        pipe.close()
    for near, _ in both:
        assert found(near) == 0
