"""vLLM's OpenAI server with the demo model, as a process of its own, with this package's entry points."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.server.launch import free_port, running
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm.patches import version_text

__all__ = ["Server", "installed", "serving"]

_ROOT = Path(__file__).parents[2]
_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


@dataclass
class Server:
    """A server that runs."""

    url: str
    """Without a path."""
    log: Path

    def get(self, path: str) -> str:
        """What a path answers."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())


def installed(folder: Path) -> Path:
    """A folder for PYTHONPATH that declares this checkout's entry points, whatever is installed."""
    points = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = _named(folder, "guided-plugin-checkout", "0")
    lines = (
        f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in found.items()) for group, found in points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    # The command line `vllm` asks for the version of the package of that name: the CPU build has another.
    if not list(distributions(name="vllm")):
        _named(folder, "vllm", f"{version_text()}+cpu")
    return folder


def _named(folder: Path, name: str, version: str) -> Path:
    """The metadata of a package, as if it were installed in a folder."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return metadata


@contextmanager
def serving(folder: Path, options: dict[str, Any], *arguments: str, frontends: int = 1) -> Iterator[Server]:
    """A server with options of the package, until the end of the block. `folder`: for its log and files."""
    port = free_port()
    template = folder / "template.jinja"
    template.write_text(_TEMPLATE)
    command = (
        f"--served-model-name demo --port {port} --host 127.0.0.1 --max-model-len 512 "
        f"--max-num-seqs 16 --enforce-eager --no-async-scheduling --chat-template {template} "
        "--enable-auto-tool-choice --tool-call-parser hermes --disable-uvicorn-access-log"
    ).split()
    paths = [str(installed(folder / "installed")), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # vLLM's worker spins while it waits: bound to one processor it would keep the grammar worker from it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "GUIDED_PLUGIN": json.dumps(options),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    log = folder / "log"
    begin = ["vllm.entrypoints.openai.api_server", "--model", str(MODEL_DIR)]
    if frontends > 1:
        begin = ["vllm.entrypoints.cli.main", "serve", str(MODEL_DIR), "--api-server-count", str(frontends)]
    command = [sys.executable, "-m", *begin, *command, *arguments]
    server = Server(f"http://127.0.0.1:{port}", log)
    try:
        with running(command, environment, log, server.url) as process:
            yield server
            assert process.poll() is None, log.read_text()[-4000:]
    finally:
        print(log.read_text()[-3000:])
