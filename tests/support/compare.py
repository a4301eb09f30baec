"""vLLM's OpenAI server twice, with `take_over` and with vLLM's own structured output: what differs.

    python tests/support/compare.py [--json OUT] [--only TEXT]

Sends the requests of `compare_requests` to both and prints each difference under the known one that explains
it (`compare_known`, and the table in docs/vllm.md). The exit status is 1 where none does.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from compare_known import explained
from compare_outcome import FIELDS, outcome
from compare_requests import ASKS

from benchmarks.server.launch import Launch, started

PLUGIN = {"worker_step_ms": 60_000, "worker_grammar_ms": 60_000}


def serving(folder, plugin, arguments=""):
    """A server with options of the plugin."""
    launch = Launch(sequences=16, plugin=plugin, arguments=f"--dtype float32 {arguments}")
    return started(launch, folder / f"{'-'.join(plugin)}.log")


def own(folder, arguments=""):
    """A server with vLLM's own structured output."""
    return serving(folder, {"enabled": False}, arguments)


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
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with serving(folder, PLUGIN) as ours, own(folder) as theirs:
            found = list(compare([ours.url, theirs.url], asks))
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
