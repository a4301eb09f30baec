"""MaskBench: what a backend makes of real-world schemas, and how fast. Runs in child processes.

Each file holds a `schema` and `tests: [{valid, data}]`. A schema passes when every valid instance is
accepted and every invalid one refused. A child works on one file at a time and is killed when it takes
too long; it then counts as died, as it does when it crashes.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guided_plugin.errors import ConfigError
from guided_plugin.grammar import frames

__all__ = ["compared", "files_of", "run_maskbench", "summary"]

STATUSES = ("pass", "wrong_accept", "wrong_refuse", "refused", "died", "malformed")

_START_SECONDS = 180.0


@contextmanager
def files_of(source: Path) -> Iterator[list[Path]]:
    """The JSON files of a folder, or of a tar archive, which is unpacked for as long as they are used."""
    if source.is_dir():
        yield sorted(source.rglob("*.json"))
        return
    with tempfile.TemporaryDirectory(prefix="maskbench-") as folder:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
        except (OSError, tarfile.TarError) as error:
            raise ConfigError(
                f"neither a folder nor a tar archive: {error}",
                where=str(source),
                hint="give a folder of JSON files with `schema` and `tests`",
            ) from error
        yield sorted(Path(folder).rglob("*.json"))


def run_maskbench(
    files: Sequence[Path],
    tokenizer: Path,
    *,
    backend: str = "auto",
    jobs: int = 1,
    limit: float = 60.0,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Any]]:
    """A result for each file, by name. Interrupted, it returns what is done."""
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for path in files:
        waiting.put(path)
    results: dict[str, dict[str, Any]] = {}
    stopping = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        child: _Child | None = None
        try:
            while not stopping.is_set():
                try:
                    path = waiting.get_nowait()
                except queue.Empty:
                    return
                if child is None:
                    child = _Child(tokenizer, backend)
                result = child.run(path, limit)
                results[path.name] = result
                if result["status"] == "died":
                    child.stop()
                    child = None
                progress()
        except BaseException as error:
            failures.append(error)
        finally:
            if child is not None:
                child.stop()

    threads = [threading.Thread(target=work) for _ in range(max(1, min(jobs, len(files))))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except KeyboardInterrupt:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return dict(sorted(results.items()))


class _Child:
    """One process that compiles and matches."""

    def __init__(self, tokenizer: Path, backend: str) -> None:
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "guided_plugin.bench.maskbench_process", str(tokenizer), backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            # Ctrl-C is for the parent, which then ends its children.
            start_new_session=True,
            bufsize=0,
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise ConfigError("a benchmark process without pipes")
        self._to, self._from = self.process.stdin.fileno(), self.process.stdout.fileno()
        try:
            frames.receive(self._from, time.monotonic() + _START_SECONDS)
        except (frames.PeerGone, TimeoutError) as error:
            said = self._said()
            self.stop()
            raise ConfigError(
                f"the benchmark process can't start: {said or error}",
                hint="look at --tokenizer and --backend",
            ) from error

    def run(self, path: Path, limit: float) -> dict[str, Any]:
        """The result of one file; `died` when the process does, or when it must be killed."""
        start = time.monotonic()
        try:
            frames.send(self._to, path)
            answer: dict[str, Any] = frames.receive(self._from, time.monotonic() + limit)
        except TimeoutError:
            return {"status": "died", "error": f"took longer than {limit:g} s", "seconds": limit}
        except frames.PeerGone:
            code = self.process.wait()
            spent = round(time.monotonic() - start, 3)
            return {"status": "died", "error": f"exit code {code}: {self._said()}", "seconds": spent}
        return answer

    def stop(self) -> None:
        """Kill and forget."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def _said(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def summary(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The table's row: counts, and percentiles of mask and first-mask times."""
    counts = Counter(result["status"] for result in results.values())
    masks = sorted(time for result in results.values() for time in result.get("mask_us", ()))
    first = sorted(result["first_mask_ms"] for result in results.values() if "first_mask_ms" in result)
    total = len(results)
    return {
        "files": total,
        "instances": sum(result.get("instances", 0) for result in results.values()),
        **{status: counts[status] for status in STATUSES},
        "passing": round(counts["pass"] / total, 4) if total else None,
        "backends": dict(Counter(r["backend"] for r in results.values() if "backend" in r)),
        "masks": len(masks),
        "mask_us": {
            "avg": round(sum(masks) / len(masks), 2) if masks else None,
            "p50": _percentile(masks, 0.5),
            "p99": _percentile(masks, 0.99),
            "p99.9": _percentile(masks, 0.999),
            "max": masks[-1] if masks else None,
        },
        "first_mask_ms": {
            "p50": _percentile(first, 0.5),
            "p90": _percentile(first, 0.9),
            "p99": _percentile(first, 0.99),
            "max": first[-1] if first else None,
        },
    }


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What changed between two results, a line a file."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old = before.get(name, {}).get("status", "absent")
        new = after.get(name, {}).get("status", "absent")
        if old != new:
            why = after.get(name, {}).get("error") or ""
            lines.append(f"{name}: {old} -> {new} {why}".rstrip())
    return lines


def read_file(path: Path) -> tuple[Any, list[tuple[bool, str]]]:
    """A schema, and its instances as texts with whether they are valid. Raises ValueError."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or "schema" not in document:
        raise ValueError("no object with a `schema`")
    tests = document.get("tests", [])
    return document["schema"], [
        (bool(test["valid"]), json.dumps(test["data"], ensure_ascii=False)) for test in tests
    ]


def _percentile(values: list[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(len(values) * share))] if values else None
