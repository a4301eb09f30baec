"""vLLM's OpenAI server twice, with `take_over` and with vLLM's own structured output: what differs.

    python tests/support/compare.py [--json OUT] [--only TEXT]

Sends the requests of `compare_requests` to both and prints each difference under the known one that explains
it (`compare_known`, and the table in docs/vllm.md). The exit status is 1 where none does.
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from compare_known import explained
from compare_outcome import FIELDS, outcome
from compare_requests import ASKS
from vllm_server import serving

PLUGIN = {"take_over": True, "mode": "process", "worker_step_ms": 60_000, "worker_grammar_ms": 60_000}


@contextlib.contextmanager
def servers(folder, *, plugin=PLUGIN):
    """Both servers: the addresses of that with the plugin and of that where it is off."""
    with contextlib.ExitStack() as both:
        urls = []
        for name, options in (("plugin", plugin), ("own", 0)):
            (folder / name).mkdir()
            urls.append(both.enter_context(serving(folder / name, options, "--dtype", "float32")).url)
        yield urls


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
