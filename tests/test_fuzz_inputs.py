"""Random inputs to everything that reads what a client or a broken process wrote.

What may come out is a result, or an error of the right kind in one printable line, in
seconds and without much memory. `make fuzz-inputs` runs more of them (GUIDED_INPUTS of
each target).
"""

import os
import resource
import time
from collections import Counter
from random import Random

import pytest
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from guided_plugin.errors import MAX_CHARACTERS, GuidedError, shown

INPUTS = int(os.environ.get("GUIDED_INPUTS", "0"))
COUNTS = {"compile": 300, "inside": 500, "regex": 500, "lower": 600, "tags": 600}
MOST_CHANGES = 8
LONGEST = 4.0
"""Of the processor, for one input."""
MOST_MEMORY = 1 << 30
"""By which one input may raise the peak of this process."""


def outcome(target, value):
    """`accepted`, or the kind of the error."""
    start = time.process_time()
    peak = peak_bytes()
    found = run(target, value)
    assert time.process_time() - start < LONGEST, "took too long"
    assert peak_bytes() - peak < MOST_MEMORY, "took too much memory"
    return found


def run(target, value):
    try:
        target.run(value)
    except target.errors as raised:
        error = raised
    else:
        return "accepted"
    text = str(error)
    assert text.isprintable(), repr(text)
    assert len(text) < 3 * MAX_CHARACTERS + 200
    assert not isinstance(error, GuidedError) or error.what, "says nothing"
    return type(error).__name__


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_inputs_at_random(name):
    target = TARGETS[name]
    outcomes = Counter()

    @settings(
        max_examples=INPUTS or COUNTS.get(name, 1500),
        deadline=None,
        database=None,
        derandomize=not INPUTS,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.sampled_from(range(len(target.seeds))),
        st.integers(0, 2**32),
        st.integers(0, MOST_CHANGES),
    )
    def feed(number, seed, changes):
        random = Random(seed)
        value = target.seeds[number]
        for _ in range(changes):
            value = target.mutate(random, value, target.seeds)
        note(f"target {name}: {shown(value)[:300]}")
        outcomes[outcome(target, value)] += 1

    feed()
    print(name, dict(outcomes))
    assert outcomes["accepted"]
    assert len(outcomes) > 1, "nothing is refused"
