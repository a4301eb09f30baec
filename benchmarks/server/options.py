"""Options of `make soak` and `make chaos`, and the server that they ask for. Depends on
attacks, launch."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.server.attacks import ATTACKS
from benchmarks.server.launch import Launch, Server, can_mount, started


def parsed(description: str, arguments: list[str] | None) -> argparse.Namespace:
    """The arguments of both commands."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("soak", "chaos"))
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of the soak, or of each attack"
    )
    parser.add_argument(
        "--clients",
        type=int,
        default=0,
        help="default: 64 for the soak, 12 for attacks",
    )
    parser.add_argument(
        "--attacks",
        default="all",
        help=f"with commas between them: {', '.join(ATTACKS)}",
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=20.0,
        help="seconds without attack before each attack",
    )
    parser.add_argument(
        "--pause", type=float, default=31.0, help="seconds between kills of workers"
    )
    parser.add_argument(
        "--model", default=Launch.model, help="a folder; default: the demo's"
    )
    parser.add_argument(
        "--tokenizer", default="", help="a folder; default: the model's"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--length", type=int, default=512, help="longest request, in tokens"
    )
    parser.add_argument(
        "--kv-tokens",
        type=int,
        default=-1,
        help="KV cache; default: small for the soak",
    )
    parser.add_argument(
        "--plugin", type=json.loads, default={}, help="options of the plugin, as JSON"
    )
    parser.add_argument(
        "--arguments", default="", help="more arguments of vLLM's server"
    )
    parser.add_argument(
        "--url", help="a server that runs already (with --pid), in place of a new one"
    )
    parser.add_argument("--pid", type=int, help="the process of that server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args(arguments)
    options.clients = options.clients or (64 if options.what == "soak" else 12)
    if options.kv_tokens < 0:
        options.kv_tokens = 2048 if options.what == "soak" else 0
    options.attacks = (
        list(ATTACKS) if options.attacks == "all" else options.attacks.split(",")
    )
    unknown = set(options.attacks) - set(ATTACKS)
    if unknown:
        parser.error(
            f"unknown attacks: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}"
        )
    if (options.url is None) != (options.pid is None):
        parser.error("--url and --pid go together")
    return options


@contextlib.contextmanager
def server_for(options: argparse.Namespace) -> Iterator[Server]:
    """A new server, or the one that is named."""
    if options.url:
        yield Server(options.url, options.pid)
        return
    launch = Launch(
        model=options.model,
        tokenizer=options.tokenizer,
        device=options.device,
        sequences=max(48, options.clients * 3 // 4),
        length=options.length,
        kv_tokens=options.kv_tokens,
        plugin=options.plugin,
        arguments=options.arguments,
        private_shm="1g" if options.what == "chaos" and can_mount() else "",
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with started(launch, log) as server:
                yield server
        finally:
            if options.out is not None and log.exists():
                options.out.with_suffix(".log").write_bytes(
                    log.read_bytes()[-(1 << 20) :]
                )
