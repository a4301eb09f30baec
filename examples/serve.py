"""vLLM's OpenAI server with the plugin and the model that ships with it, for the
examples that are clients.

python examples/serve.py        # on http://127.0.0.1:8000/v1 until Ctrl-C
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

OPTIONS = {"take_over": True, "whitespace": "compact"}
"""Of the plugin: it takes over all of vLLM's own structured output, and holds every
tool to its schema. A real model lays out JSON as it likes, the default; the tiny one
here fills its answers with whitespace."""


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[str]:
    """The address of a server that is ready; it ends with the block. Port 0: one that
    is free."""
    from guided_plugin.demo import MODEL_DIR

    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    # `vllm serve MODEL ...` does the same.
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(MODEL_DIR),
    ]
    command += [
        "--served-model-name",
        "demo",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--additional-config", json.dumps({"guided_plugin": OPTIONS})]
    command += [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--enforce-eager",
    ]
    command += [
        "--chat-template",
        "{% for message in messages %}{{ message.content }} {% endfor %}",
    ]
    # A tiny model on a CPU needs no more.
    small = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    server = subprocess.Popen(
        command, env={**small, "VLLM_LOGGING_LEVEL": "WARNING", **os.environ}
    )
    try:
        while not _ready(port):
            if server.poll() is not None:
                sys.exit("the server did not start: its last lines are above")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def server_from_arguments() -> Iterator[str]:
    """The address given as `--base-url`, or that of a server of our own."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--base-url", help="of a server that runs, such as http://127.0.0.1:8000/v1"
    )
    given = parser.parse_args().base_url
    with contextlib.nullcontext(given) if given else serving() as base_url:
        yield base_url


def _ready(port: int) -> bool:
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200
    return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=8000)
    with (
        contextlib.suppress(KeyboardInterrupt),
        serving(options.parse_args().port) as address,
    ):
        print("ready:", address, flush=True)
        while True:
            time.sleep(3600)
