"""Random inputs to everything that reads what a client or a broken process wrote, guided by coverage.

    python tests/support/fuzz_inputs.py [--count N] [--seed S] [--target NAME ...]

What may come out is a result, or an error of the right kind in one printable line. Anything else is a fault:
another exception, more than SECONDS of the processor, memory out of proportion. An input that reaches lines
which none before it reached is kept, and changed further. Prints the seed, a table, and of each fault an
input that shows it; the exit status is 1 where there is one.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

from fuzz_targets import TARGETS, Target

import guided_plugin
from guided_plugin.errors import MAX_CHARACTERS, GuidedError

__all__ = ["Fault", "Report", "fuzz_inputs"]

SECONDS = 4.0
"""Of the processor, for one input."""
_HANG_SECONDS = 60.0
"""Of the processor, traced: then an input is given up."""
_MOST_MEMORY = 1 << 30
"""By which one input may raise the peak of this process."""
_CORPUS = 2_000
_PACKAGE = str(Path(guided_plugin.__file__).parent)


class _HangError(BaseException):
    """Not an Exception: nothing in between may catch it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An input that shows something wrong."""

    target: str
    kind: str
    """The exception and where it came from: of each kind the first input is kept."""
    number: int
    value: Any

    def line(self) -> str:
        """For the report. The number and the seed make the input again."""
        try:
            shown = repr(self.value)
        except Exception as error:
            shown = f"(without a repr: {error})"
        return f"{self.target} #{self.number}: {self.kind}: {shown[:300]}"


@dataclass(slots=True)
class Report:
    """The sums of one target."""

    target: str
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    """Of the package that were reached."""
    corpus: int = 0
    without_hint: int = 0
    slowest: float = 0.0
    faults: list[Fault] = field(default_factory=list)

    def row(self) -> str:
        """A row of the table."""
        refused = sum(count for name, count in self.outcomes.items() if name != "accepted")
        return (
            f"{self.target:10} {self.inputs:8} {self.outcomes['accepted']:8} {refused:8} {self.lines:6} "
            f"{self.corpus:7} {self.slowest:8.2f} {len(self.faults):7}"
        )


HEADER = "target       inputs accepted  refused  lines  corpus  slowest  faults"


def fuzz_inputs(
    target: Target, seed: int, numbers: Iterable[int], *, enough: Callable[[], bool] = lambda: False
) -> Report:
    """Run inputs of one target. The same seed and numbers give the same inputs."""
    report = Report(target.name)
    corpus = list(target.seeds)
    lines = _Lines()
    for number in numbers:
        if enough():
            break
        random = Random(f"{target.name} {seed} {number}")
        # The seeds themselves come first.
        value = (
            corpus[number]
            if number < len(target.seeds)
            else target.mutate(random, random.choice(corpus), corpus)
        )
        before = lines.count
        kind = _outcome(target, value, lines, report)
        report.inputs += 1
        if lines.count > before and len(corpus) < _CORPUS:
            corpus.append(value)
        if kind and all(kind != fault.kind for fault in report.faults):
            report.faults.append(Fault(target.name, kind, number, value))
    report.lines, report.corpus = lines.count, len(corpus)
    return report


def _outcome(target: Target, value: Any, lines: _Lines, report: Report) -> str:
    """Run one input; what is wrong, if anything is."""
    start, peak = time.process_time(), _peak_bytes()
    outcome, wrong = _verdict(target, value, lines)
    if (seconds := time.process_time() - start) > SECONDS and not wrong:
        start = time.process_time()  # again, without what tracing costs
        _, wrong = _verdict(target, value, None)
        seconds = time.process_time() - start
        if seconds > SECONDS and not wrong:
            wrong = f"more than {SECONDS:g} s, {outcome}"
    report.slowest = max(report.slowest, seconds)
    if not wrong and _peak_bytes() - peak > _MOST_MEMORY:
        wrong = f"memory, {outcome}"
    report.outcomes[outcome] += 1
    return wrong


def _verdict(target: Target, value: Any, lines: _Lines | None) -> tuple[str, str]:
    try:
        with _alarm(), lines or _Lines():
            target.run(value)
    except target.errors as error:
        return type(error).__name__, _complaint(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return type(error).__name__, f"{type(error).__name__} in {_place(error)}"
    return "accepted", ""


def _complaint(error: BaseException) -> str:
    """What is wrong with an error's message."""
    text = str(error)
    if not text.isprintable() or len(text) > 3 * MAX_CHARACTERS + 200:
        return f"a message of {len(text)} characters, {'' if text.isprintable() else 'not '}printable"
    if isinstance(error, GuidedError) and not error.what:
        return f"an empty {type(error).__name__} in {_place(error)}"
    return ""


def _place(error: BaseException) -> str:
    """The innermost line of the package, and the innermost of all."""
    own = innermost = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        innermost = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
        if code.co_filename.startswith(_PACKAGE):
            own = f"{code.co_filename.removeprefix(_PACKAGE + '/')}:{code.co_name}"
        trace = trace.tb_next
    return f"{own} ({innermost if not isinstance(error, RecursionError | _HangError) else '...'})"


class _Lines:
    """The lines of the package that ran, while it is entered."""

    def __init__(self) -> None:
        self._seen: dict[CodeType, set[int]] = {}
        self.count = 0

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return None
        seen = self._seen.setdefault(code, set())

        def line(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line" and frame.f_lineno not in seen:
                seen.add(frame.f_lineno)
                self.count += 1
            return line

        return line


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _HangError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, _HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), default=None)
    options = parser.parse_args()
    seed = Random().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}\n{HEADER}", flush=True)
    faults = []
    for name in options.target or sorted(TARGETS):
        report = fuzz_inputs(TARGETS[name], seed, range(options.count))
        faults += report.faults
        print(report.row(), flush=True)
    print(*(fault.line() for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
