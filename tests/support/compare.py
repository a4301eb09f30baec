"""vLLM's OpenAI server twice, with `take_over` and with vLLM's own structured output: what differs.

    python tests/support/compare.py [--json OUT] [--only TEXT]

Sends the requests of `compare_requests` to both and prints each difference under the known one that explains
it (`compare_known`, and the table in docs/vllm.md). The exit status is 1 where none does.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from compare_known import explained
from compare_outcome import FIELDS, outcome
from compare_requests import ASKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "guided_plugin" / "demo" / "model"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
PLUGIN = {"take_over": True, "mode": "process", "worker_step_ms": 60_000, "worker_grammar_ms": 60_000}
START_SECONDS = 600


@contextlib.contextmanager
def servers(folder, *, plugin=PLUGIN):
    """Both servers: the addresses of that with the plugin and of that without."""
    (folder / "template.jinja").write_text(TEMPLATE)
    started = [_start(folder, "plugin", plugin), _start(folder, "own", None)]
    try:
        yield [_wait(*one) for one in started]
    finally:
        for _, process, _ in started:
            process.terminate()
        for _, process, _ in started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _start(folder, name, plugin):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL)]
    command += [
        "--served-model-name",
        "demo",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
    ]
    command += ["--max-model-len", "512", "--max-num-seqs", "16", "--enforce-eager", "--no-async-scheduling"]
    command += ["--chat-template", str(folder / "template.jinja"), "--disable-uvicorn-access-log"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--logits-processors", "guided_plugin.vllm:GuidedLogitsProcessor"]
    environment = {
        **os.environ,
        "GUIDED_PLUGIN": "0" if plugin is None else json.dumps(plugin),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # vLLM's worker spins while it waits: bound to one processor it would keep the grammar worker from it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    log = folder / f"{name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    return f"http://127.0.0.1:{port}", process, log


def _wait(url, process, log):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return url
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start; the end of {log}:\n{log.read_text()[-4000:]}")


def compare(urls, asks):
    """The outcomes of each request at both, and what differs: (ask, ours, theirs, fields)."""
    with ThreadPoolExecutor(8) as pool:
        both = [list(pool.map(lambda ask, url=url: outcome(url, ask), asks)) for url in urls]
    for ask, ours, theirs in zip(asks, *both, strict=True):
        yield ask, ours, theirs, [name for name in FIELDS if _differs(ask, name, ours, theirs)]


def _differs(ask, name, ours, theirs):
    """Texts and logprobs are compared where both follow one language: JSON and tools have several."""
    if name in ("text", "logprobs") and ask.pattern is None and "option" not in ask.tags:
        return False
    return ours.get(name) != theirs.get(name)


def main():
    """Compare all, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="write all outcomes there")
    parser.add_argument("--only", default="", help="requests with this in their name")
    chosen = parser.parse_args()
    asks = [ask for ask in ASKS if chosen.only in ask.name]
    with tempfile.TemporaryDirectory() as folder, servers(pathlib.Path(folder)) as urls:
        found = list(compare(urls, asks))
    if chosen.json:
        rows = [{"name": ask.name, "plugin": a, "own": b, "differs": which} for ask, a, b, which in found]
        chosen.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    same = sum(not fields for *_, fields in found)
    unexplained = 0
    for ask, ours, theirs, fields in found:
        if fields:
            name = explained(ask, ours, theirs, fields)
            unexplained += name is None
            print(f"{name or 'NOT EXPLAINED'}: {ask.name}: {', '.join(fields)}")
            for field in fields if name is None else ():
                print(f"    {field}: {ours.get(field)} | {theirs.get(field)}")
    print(f"{len(found)} requests, {same} alike, {unexplained} differ without an explanation")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
