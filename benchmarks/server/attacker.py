"""One attack in a process of its own, so that its work is not that of the ordinary
clients.

    python -m benchmarks.server.attacker NAME --url URL --pid PID --seconds N [--pause N]

Says `ready`, waits for a line, attacks, and prints what it did as JSON. `Attacker`
starts one. Depends on attacks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.server.launch import ROOT, Server


class Attacker:
    """The process that attacks a server for some seconds."""

    def __init__(self, name: str, server: Server, seconds: float, pause: float) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.server.attacker",
            name,
            "--url",
            server.url,
        ]
        command += [
            "--pid",
            str(server.pid),
            "--seconds",
            str(seconds),
            "--pause",
            str(pause),
        ]
        pipe = subprocess.PIPE
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        if self._process.stdout is None or self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise RuntimeError(f"the process of the attack {name} did not start")

    def begin(self) -> None:
        """Let it attack."""
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def end(self, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until it is over; what it did."""
        try:
            out, _ = self._process.communicate(timeout=seconds)
            return dict(json.loads(out))
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()
            return {"failed": "the process of the attack did not report"}


async def _attack(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.server.attacks import ATTACKS
    from benchmarks.server.clients import connect
    from benchmarks.server.target import Skipped, Target

    async with connect(options.url) as session:
        target = Target(session, options.pid, options.pause)
        try:
            async with asyncio.timeout(options.seconds):
                await ATTACKS[options.name](target)
        except TimeoutError:
            pass
        except Skipped as why:
            return {**target.report(), "skipped": str(why)}
        return target.report()


def main() -> None:
    """Wait for the word, and attack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pause", type=float, default=31.0)
    options = parser.parse_args()
    from benchmarks.server.hostile import PREPARED

    PREPARED.get(options.name, tuple)()

    with contextlib.suppress(OSError):
        os.nice(5)  # in earnest these clients are other machines
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(_attack(options))))


if __name__ == "__main__":
    main()
