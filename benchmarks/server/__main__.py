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

import argparse
import json
import shlex
import signal
import sys
import threading
import time
from typing import Any

from benchmarks.server import table
from benchmarks.server.launch import Server
from benchmarks.server.options import parsed, server_for
from benchmarks.server.runs import chaos, invalid, soak
from guided_plugin.bench import environment

_FORGOTTEN_SECONDS = 61.0


def _soak(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    found = soak(
        server, clients=options.clients, seconds=options.seconds, seed=options.seed
    )
    if "failed" not in found:
        print(
            table.answers({"soak": found}),
            table.processes(found["processes"]),
            sep="\n\n",
        )
        print(f"\npreemptions: {found['preemptions']:.0f}")
        for line in found["invalid"]:
            print("invalid:", line)
        for line, count in found["lost"].items():
            print(f"lost: {count} x {line}")
    return {"soak": found}


def _chaos(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    quiet_at = 0.0
    for name in options.attacks:
        # Deaths in one attack must not count in the next: three within a minute are too
        # many.
        time.sleep(max(0.0, quiet_at - time.monotonic()))
        found = results[name] = chaos(
            server,
            name,
            clients=options.clients,
            seconds=options.seconds,
            quiet=options.quiet,
            pause=options.pause,
            seed=options.seed,
        )
        _print_attack(name, found)
        quiet_at = (
            max([0.0, *found.get("attack", {}).get("kills", ())]) + _FORGOTTEN_SECONDS
        )
        if not found["server_alive"]:
            break
    runs = {
        f"{name}{end}": found[part]
        for name, found in results.items()
        if "attacked" in found
        for end, part in ((", before", "quiet"), ("", "attacked"))
    }
    if runs:
        print("\n" + table.answers(runs))
    print()
    for name, found in results.items():
        skipped = found.get("attack", {}).get("skipped")
        said = (
            [f"skipped: {skipped}"]
            if skipped
            else found.get("worse", [found.get("failed")])
        )
        print(f"{name}: {'; '.join(said) or 'nothing worse than promised'}")
    return results


def _print_attack(name: str, found: dict[str, Any]) -> None:
    print(f"\n== {name}")
    if "attacked" not in found:
        print(found["failed"], flush=True)
        return
    print(table.answers({"before": found["quiet"], "attack": found["attacked"]}))
    print(table.processes(found["processes"]))
    print(
        "clients of the attack:",
        json.dumps(found["attack"].get("ends", found["attack"])),
    )
    for line, count in found["attacked"]["lost"].items():
        print(f"lost: {count} x {line}")
    for line in [
        *found["quiet"]["invalid"],
        *found["attacked"]["invalid"],
        *found["attack"].get("invalid", ()),
    ]:
        print("invalid:", line)
    print("worse than promised:", "; ".join(found["worse"]) or "nothing", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and write."""
    options = parsed(__doc__ or "", arguments)
    if threading.current_thread() is threading.main_thread():
        # the server ends with it
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with server_for(options) as server:
        results = (_soak if options.what == "soak" else _chaos)(server, options)
    if options.out is not None:
        command = shlex.join(
            [
                "python",
                "-m",
                "benchmarks.server",
                *(sys.argv[1:] if arguments is None else arguments),
            ]
        )
        where = environment(options.device)
        made = {
            "command": command,
            "date": where["date"],
            "environment": where,
            "results": results,
        }
        options.out.write_text(json.dumps(made, indent=1) + "\n")
    bad = [
        name
        for name, found in results.items()
        if invalid(found) or not found.get("server_alive", False)
    ]
    print("answers invalid, or no server:", ", ".join(bad) or "none")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
