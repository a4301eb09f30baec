"""vLLM's OpenAI server with the demo model, as a process of its own, with this
package's entry points."""

import os
import tomllib
import urllib.request
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.server.launch import Launch, Server, free_port, running
from guided_plugin.hosts.vllm.patches import version_text

_ROOT = Path(__file__).parents[2]


def installed(folder):
    """A folder for PYTHONPATH that declares this checkout's entry points, whatever is
    installed."""
    points = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    metadata = _named(folder, "guided-plugin-checkout", "0")
    lines = (
        f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in found.items())
        for group, found in points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    # The command line `vllm` asks for the version of the package of that name: the CPU
    # build has another.
    if not list(distributions(name="vllm")):
        _named(folder, "vllm", f"{version_text()}+cpu")
    return folder


def _named(folder, name, version):
    """The metadata of a package, as if it were installed in a folder."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    return metadata


@contextmanager
def serving(folder, options, *arguments):
    """A server of two frontends with options of the package, until the end of the
    block, which refuses guided requests for 20 s after three deaths of its worker, not
    for a minute. `folder`: for its log and files."""
    launch = Launch(sequences=16, plugin=options)
    port = free_port()
    log = folder / "log"
    python, _, _, _, model, *rest = launch.command(port)
    command = [
        python,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        model,
        "--api-server-count",
        "2",
    ]
    environment = {
        **launch.environment(),
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_ENABLE_RESPONSES_API_STORE": "1",  # for those in the background
        "PYTHONPATH": os.pathsep.join(
            map(
                str,
                [
                    installed(folder / "installed"),
                    Path(__file__).with_name("short_window"),
                    launch.environment()["PYTHONPATH"],
                ],
            )
        ),
    }
    url = f"http://127.0.0.1:{port}"
    try:
        with running([*command, *rest, *arguments], environment, log, url) as process:
            yield Server(url, process.pid, log)
            assert process.poll() is None, log.read_text()[-4000:]
    finally:
        print(log.read_text()[-3000:])


def metrics_of(server):
    """What the server's `/metrics` answers."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        return str(answer.read().decode())
