"""Random inputs to everything that reads what a client or a broken process wrote,
guided by coverage.

What may come out is a result, or an error of the right kind in one printable line, in
seconds and without much memory. An input that reaches lines of the package which none
before it reached is kept, and changed further. `make fuzz-inputs` runs more of them
(GUIDED_INPUTS of each target, GUIDED_SEED).
"""

import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from fuzz_targets import TARGETS, Target

import guided_plugin
from guided_plugin.errors import MAX_CHARACTERS, GuidedError, SpecError

PACKAGE = str(Path(guided_plugin.__file__).parent)
INPUTS = int(os.environ.get("GUIDED_INPUTS", "0"))
SEED = int(os.environ.get("GUIDED_SEED", "7"))
COUNTS = {"compile": 300, "inside": 500, "lower": 600, "tags": 600, "regex": 500}
SECONDS = 20.0
"""Of the processor, for all inputs of a target where no number of them is asked for."""
LONGEST = 4.0
"""Of the processor, for one input."""
MOST_MEMORY = 1 << 30
"""By which one input may raise the peak of this process."""


def fuzz(target, numbers, enough=lambda: False):
    """How the inputs of a target ended; lines reached and inputs kept. The seeds
    themselves come first."""
    corpus = list(target.seeds)
    lines = set()
    outcomes = Counter()
    for number in numbers:
        if enough():
            break
        random = Random(f"{target.name} {SEED} {number}")
        first = number < len(target.seeds)
        value = (
            corpus[number]
            if first
            else target.mutate(random, random.choice(corpus), corpus)
        )
        before = len(lines)
        try:
            outcomes[outcome(target, value, lines)] += 1
        except BaseException as error:
            error.add_note(
                f"target {target.name}, seed {SEED}, input {number}: {shown(value)}"
            )
            raise
        if len(lines) > before:
            corpus.append(value)
    return outcomes, len(lines), len(corpus)


def outcome(target, value, lines):
    """`accepted`, or the kind of the error."""
    start = time.process_time()
    peak = peak_bytes()
    found = run(target, value, lines)
    if time.process_time() - start > LONGEST:
        start = time.process_time()  # again, without what tracing costs
        run(target, value, None)
        assert time.process_time() - start < LONGEST, "took too long"
    assert peak_bytes() - peak < MOST_MEMORY, "took too much memory"
    return found


def run(target, value, lines):
    if lines is not None:
        sys.settrace(tracer(lines))
    try:
        target.run(value)
    except target.errors as raised:
        error = raised
    else:
        return "accepted"
    finally:
        sys.settrace(None)
    text = str(error)
    assert text.isprintable(), repr(text)
    assert len(text) < 3 * MAX_CHARACTERS + 200
    assert not isinstance(error, GuidedError) or error.what, "says nothing"
    return type(error).__name__


def tracer(lines):
    """Notes the lines of the package that run."""

    def line(frame, event, _):
        if event == "line":
            lines.add((frame.f_code, frame.f_lineno))
        return line

    return lambda frame, *_: (
        line if frame.f_code.co_filename.startswith(PACKAGE) else None
    )


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def shown(value):
    try:
        return repr(value)[:300]
    except Exception as error:
        return f"(without a repr: {error})"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_inputs_at_random(name):
    end = time.process_time() + SECONDS
    numbers = range(INPUTS or COUNTS.get(name, 1500))
    outcomes, lines, kept = fuzz(
        TARGETS[name], numbers, lambda: not INPUTS and time.process_time() > end
    )
    print(name, dict(outcomes), f"{lines} lines, {kept} kept")
    assert outcomes.total() > 20
    assert outcomes["accepted"]
    assert len(outcomes) > 1, "nothing is refused"


def run_odd(value):
    match value:
        case 1:
            raise KeyError("no error of the package")
        case 2:
            raise SpecError("\x1b[31m", where="a\nb")
        case 3:
            raise SpecError("")
        case 4:
            sum(range(10**7))


@pytest.mark.parametrize(
    ("value", "told"), [(1, KeyError), (3, AssertionError), (4, AssertionError)]
)
def test_a_fault_is_found(monkeypatch, value, told):
    monkeypatch.setitem(globals(), "LONGEST", 0.01)
    target = Target("odd", (0, 2, value), run_odd, (SpecError,), lambda *_: value)
    with pytest.raises(told) as caught:
        fuzz(target, range(3))
    assert caught.value.__notes__ == [f"target odd, seed {SEED}, input 2: {value}"]
