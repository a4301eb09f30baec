"""A part of `make fuzz-inputs`: whatever comes in, a result or an error of the right kind comes out."""

import time

import pytest
from fuzz_inputs import fuzz_inputs
from fuzz_targets import TARGETS, Target

from guided_plugin.errors import SpecError

SEED, SECONDS = 7, 20.0
COUNTS = {"compile": 300, "lower": 600, "tags": 600, "regex": 500}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_inputs_at_random(name):
    end = time.process_time() + SECONDS
    report = fuzz_inputs(
        TARGETS[name], SEED, range(COUNTS.get(name, 1500)), enough=lambda: time.process_time() > end
    )
    print(report.row())
    assert [fault.line() for fault in report.faults] == []
    assert report.inputs > 20
    assert report.outcomes["accepted"]
    assert len(report.outcomes) > 1, "nothing is refused"


def run_odd(value):
    match value:
        case 1:
            raise KeyError("no error of the package")
        case 2:
            raise SpecError("\x1b[31m", where="a\nb")
        case 3:
            raise SpecError("")
        case 4:
            while True:
                pass


@pytest.mark.parametrize(
    ("value", "kind"), [(1, "KeyError"), (2, ""), (3, "an empty SpecError"), (4, "_HangError"), (5, "")]
)
def test_a_fault_is_found(monkeypatch, value, kind):
    monkeypatch.setattr("fuzz_inputs._HANG_SECONDS", 0.2)
    report = fuzz_inputs(Target("odd", (value,), run_odd, (SpecError,), lambda *_: value), 1, range(2))
    assert [fault.kind.startswith(kind) for fault in report.faults] == ([True] if kind else [])
