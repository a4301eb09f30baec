"""vLLM's OpenAI server under load, and under attack; every finished guided answer is
judged.

    python -m benchmarks.server soak  [--seconds 60] [--clients 64] [--out FILE]
    python -m benchmarks.server chaos [--seconds 60] [--clients 12] [--attacks NAME,NAME] [--out FILE]

The soak mixes requests of every form, with and without streaming, new schemas all the
time, clients that leave, and a KV cache so small that requests are preempted. Chaos
runs long streams, first without an attack and then with it, for each attack in turn.
Prints tables, and writes JSON (next to it the end of the server's log). The exit code
is 1 if an answer with status 200 was wrong, or the server ended. For a GPU: --device
cuda --model DIR --tokenizer DIR --arguments "MORE OF VLLM'S OPTIONS".
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Json, Options, given, head, write
from benchmarks.server.attacks import ATTACKS
from benchmarks.server.launch import Launch, Server, started
from benchmarks.server.processes import MEASURES
from benchmarks.server.runs import chaos, invalid, soak
from benchmarks.tables import show_table

_FORGOTTEN_SECONDS = 61.0
_COLUMNS = (
    ("run", "{run}"),
    ("valid", "{ends[valid]}"),
    ("length", "{ends[length]}"),
    ("invalid", "{ends[invalid]}"),
    ("lost, guided", "{guided_lost}"),
    ("not", "{unguided_lost}"),
    ("gap ms p50", "{gaps_ms[p50]}"),
    ("p99", "{gaps_ms[p99]}"),
    ("max", "{gaps_ms[max]}"),
    ("new schema ms p50", "{new_schema_first_token_ms[p50]}"),
    ("p99", "{new_schema_first_token_ms[p99]}"),
    ("kills", "{kills}"),
    ("back ms p50", "{back_ms[p50]}"),
    ("max", "{back_ms[max]}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write."""
    options = parsed(arguments)
    if threading.current_thread() is threading.main_thread():
        # the server ends with it
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with server_for(options) as server:
        results = (_soak if options.what == "soak" else _chaos)(server, options)
    result = head("benchmarks.server", given(arguments), options.device)
    write({**result, "results": results}, options.out)
    bad = [
        name
        for name, found in results.items()
        if invalid(found) or not found.get("server_alive", False)
    ]
    print("answers invalid, or no server:", ", ".join(bad) or "none")
    return int(bool(bad))


def parsed(arguments: Sequence[str] | None) -> Any:
    """The options of both commands."""
    parser = Options(__doc__, prog="python -m benchmarks.server")
    parser.add_argument("what", choices=("soak", "chaos"))
    add = parser.add
    add("--seconds", 60.0, "of the soak, or of each attack")
    add("--clients", 0, "default: 64 for the soak, 12 for attacks")
    parser.several("--attacks", list(ATTACKS), ATTACKS, "of chaos")
    add("--quiet", 20.0, "seconds without attack before each attack")
    add("--model", Launch.model, "a folder; default: the demo's")
    add("--tokenizer", "", "a folder; default: the model's")
    add("--device", "cpu", "cpu or cuda")
    add("--plugin", {}, "options of the plugin, as JSON", json.loads)
    add("--arguments", "", "more arguments of vLLM's server")
    parser.out()
    options = parser.parse_args(arguments)
    options.clients = options.clients or (64 if options.what == "soak" else 12)
    return options


@contextlib.contextmanager
def server_for(options: Any) -> Iterator[Server]:
    """The server that is asked."""
    is_soak = options.what == "soak"
    launch = Launch(
        model=options.model,
        tokenizer=options.tokenizer,
        device=options.device,
        sequences=max(48, options.clients * 3 // 4),
        kv_tokens=2048 if is_soak else 0,
        plugin=options.plugin,
        arguments=options.arguments,
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with started(launch, log) as server:
                yield server
        finally:
            if options.out is not None and log.exists():
                end = log.read_bytes()[-(1 << 20) :]
                options.out.with_suffix(".log").write_bytes(end)


def _soak(server: Server, options: Any) -> dict[str, Json]:
    found = soak(server, clients=options.clients, seconds=options.seconds)
    _show("soak", {"soak": found}, found)
    print(f"preemptions: {found.get('preemptions')}")
    return {"soak": found}


def _chaos(server: Server, options: Any) -> dict[str, Json]:
    results: dict[str, Json] = {}
    quiet_at = 0.0
    for name in options.attacks:
        # Deaths in one attack must not count in the next: three within a minute are too
        # many.
        time.sleep(max(0.0, quiet_at - time.monotonic()))
        found = chaos(
            server,
            name,
            clients=options.clients,
            seconds=options.seconds,
            quiet=options.quiet,
        )
        results[name] = found
        done = found.get("attack", {})
        runs = {
            "before": found.get("quiet"),
            "attack": found.get("attacked"),
        }
        _show(name, runs, found)
        print("the attack:", json.dumps(done.get("ends")), flush=True)
        quiet_at = max([0.0, *done.get("kills", ())]) + _FORGOTTEN_SECONDS
        if not found["server_alive"]:
            break
    return results


def _show(name: str, runs: dict[str, Any], found: Json) -> None:
    """The tables of a run, and what was lost or invalid in it."""
    print(f"\n== {name}")
    if "failed" in found:
        print(found["failed"])
        return
    show_table([{"run": run, **figures} for run, figures in runs.items()], _COLUMNS)
    for role, measures in found["processes"].items():
        for measure in MEASURES:
            if measure in measures:
                print(f"{role}, {measure}: {json.dumps(measures[measure])}")
    for figures in runs.values():
        for line in figures["invalid"]:
            print("invalid:", line)
        for line, count in figures["lost"].items():
            print(f"lost: {count} x {line}")


if __name__ == "__main__":
    sys.exit(main())
