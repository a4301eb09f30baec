"""vLLM's OpenAI server as a process of its own, the plugin loaded. Depends on the demo
model.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODEL = "demo"
"""The name under which the model is served."""

START_SECONDS = 900.0


@dataclass(frozen=True)
class Launch:
    """What the server is started with."""

    model: str = str(ROOT / "guided_plugin" / "demo" / "model")
    tokenizer: str = ""
    device: str = "cpu"
    sequences: int = 64
    length: int = 512
    """Longest request, in tokens."""
    kv_tokens: int = 0
    """Size of the KV cache; 0: as much as vLLM takes."""
    plugin: dict[str, Any] = field(default_factory=dict)
    """Options of the plugin on top of `take_over` and `mode: process`."""
    arguments: str = ""
    """More arguments of the server."""
    python: str = sys.executable
    """The interpreter that has vLLM."""

    def command(self, port: int) -> list[str]:
        """The command line of the server."""
        options = {
            "--model": self.model,
            "--tokenizer": self.tokenizer or self.model,
            "--served-model-name": MODEL,
            "--host": "127.0.0.1",
            "--port": port,
            "--max-model-len": self.length,
            "--max-num-seqs": self.sequences,
            "--chat-template": HERE / "template.jinja",
            "--tool-call-parser": "hermes",
            "--logits-processors": "guided_plugin.vllm:GuidedLogitsProcessor",
        }
        if self.kv_tokens:
            options["--block-size"] = 32
            options["--num-gpu-blocks-override"] = self.kv_tokens // 32
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server"]
        for option in options.items():
            command += map(str, option)
        command += ["--disable-uvicorn-access-log", "--enable-auto-tool-choice"]
        if self.device == "cpu":
            command += ["--enforce-eager", "--no-async-scheduling"]
        command += shlex.split(self.arguments)
        return command

    def environment(self) -> dict[str, str]:
        """The variables of the server."""
        options = {"take_over": True, "mode": "process", **self.plugin}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        ours = {"GUIDED_PLUGIN": json.dumps(options), "PYTHONPATH": path}
        defaults = {"VLLM_LOGGING_LEVEL": "WARNING"}
        if self.device == "cpu":
            # The demo model gains nothing by more threads, and they spin where
            # processors are shared.
            defaults["OMP_NUM_THREADS"] = "1"
            # vLLM's worker spins while it waits: bound to one processor, it keeps the
            # grammar worker off it.
            ours |= {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
        return {**defaults, **os.environ, **ours}


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    url: str
    pid: int
    log: Path | None = None

    def alive(self) -> bool:
        """Whether it answers that it is healthy."""
        return _answers(self.url)

    def metric(self, name: str) -> float:
        """The sum of one of vLLM's own counters; nan where the server doesn't tell."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return float("nan")
        found = [
            float(line.split()[-1]) for line in lines if line.startswith(name + "{")
        ]
        return sum(found) if found else float("nan")


def free_port() -> int:
    """A port that no process uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def started(launch: Launch, log: Path) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it afterwards."""
    port = free_port()
    with running(
        launch.command(port), launch.environment(), log, f"http://127.0.0.1:{port}"
    ) as process:
        yield Server(
            f"http://127.0.0.1:{port}",
            process.pid,
            log,
        )


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, url: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process from when it answers; it is ended afterwards."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"the server did not start; the end of {log}:\n{log.read_text()[-4000:]}"
                )
            time.sleep(0.5)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
