"""Compiles and masks of a sample's schemas, in turns with llguidance's own JSON
compiler: what exact answers cost.

    python -m benchmarks.maskbench.paired SAMPLE --tokenizer DIR [--every N] [--json OUT]

Both read the same schemas in one thread, first one and then the other, and fill the
same masks along the first valid instance that both accept. Schemas that one of them
refuses are counted and left out. Times are processor time of the thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

from benchmarks.maskbench.child import text_of
from benchmarks.samples import TextTokens, open_sample
from guided_plugin.bench import environment
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.cli.results import check_out, progress, write_json
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

_OPTIONS = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}


@dataclass(slots=True)
class Times:
    """What one side took for a schema, in ms; for masks, in us."""

    compile: float = 0.0
    first_mask: float = 0.0
    """With the compile."""
    masks: list[float] = field(default_factory=list)


class Side:
    """One of the two ways from a schema to masks."""

    def __init__(self, vocabulary: Vocabulary, compile: Callable[[Any], Any]) -> None:
        self._compile = compile
        self._stops = set(vocabulary.stop_token_ids)
        self._mask = np.zeros((1, vocabulary.words), np.int32)

    def begin(self, schema: Any, times: Times) -> Any:
        """A matcher of a schema, its first mask filled; None where it is refused."""
        start = time.thread_time_ns()
        matcher = self._compile(schema)
        times.compile = (time.thread_time_ns() - start) / 1e6
        if matcher is None:
            return None
        matcher.fill(self._mask)
        times.first_mask = (time.thread_time_ns() - start) / 1e6
        return matcher

    def walk(self, matcher: Any, tokens: list[int]) -> list[float]:
        """Times of the masks along an output; empty where it is not accepted."""
        times: list[float] = []
        for token in tokens:
            start = time.thread_time_ns()
            matcher.fill(self._mask)
            times.append((time.thread_time_ns() - start) / 1e3)
            if not matcher.accept(token):
                return []
        return times


class _Ours:
    """A matcher of this package."""

    def __init__(self, compiler: GrammarCompiler, grammar: Any) -> None:
        backend = compiler.backend(grammar.backend)
        stops = compiler.vocabulary.stop_token_ids
        self._batch = backend.batch([backend.start(grammar, stops)])

    def fill(self, mask: Any) -> None:
        self._batch.fill(mask, [0])

    def accept(self, token: int) -> bool:
        return bool(self._batch.accept([token])[0])


class _Theirs:
    """A matcher of llguidance."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask: Any) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))


def sides(vocabulary: Vocabulary) -> dict[str, Side]:
    """This package, and llguidance by itself."""
    # Nothing stays in the cache: of two files with one schema both are compiled, in
    # this thread, whose time is measured.
    config = GuidedConfig(
        backend="llguidance",
        threads=1,
        cache_bytes=0,
        isolate_compiles=False,
        **vars(UNBOUNDED),
    )
    compiler = GrammarCompiler(vocabulary, config=config)
    tokenizer = Tokenizers(vocabulary).plain

    def ours(schema: Any) -> Any:
        try:
            spec = OutputSpec.json_schema(schema, strict=False, whitespace="flexible")
            return _Ours(compiler, compiler.compile(spec))
        except GuidedError:
            return None

    def theirs(schema: Any) -> Any:
        text = json.dumps(schema)
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                text, defaults=_OPTIONS
            )
        except ValueError:
            return None
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        return None if matcher.is_error() else _Theirs(matcher)

    return {
        "guided_plugin": Side(vocabulary, ours),
        "llguidance": Side(vocabulary, theirs),
    }


def measure(
    files: dict[str, Path], vocabulary: Vocabulary, note: Callable[[str], None]
) -> dict[str, Any]:
    """Measure all files; the result is JSON."""
    both = sides(vocabulary)
    tokens_of = TextTokens(vocabulary)
    refused = dict.fromkeys(both, 0)
    rows = []
    distinct = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    for side in both.values():  # what is built once for a vocabulary
        side.begin(distinct, Times())
    gc.disable()
    for number, (name, path) in enumerate(files.items()):
        note(name)
        document = json.loads(path.read_bytes())
        row = {side: Times() for side in both}
        turns = list(both)[:: 1 if number % 2 else -1]
        matchers = {
            side: both[side].begin(document["schema"], row[side]) for side in turns
        }
        for side, matcher in matchers.items():
            refused[side] += matcher is None
        if None in matchers.values():
            continue
        valid = [test["data"] for test in document["tests"] if test["valid"]]
        if valid:
            tokens = tokens_of(text_of(valid[0]))
            walks = {side: both[side].walk(matchers[side], tokens) for side in turns}
            if all(walks.values()):
                for side, walk in walks.items():
                    row[side].masks = walk
        rows.append({"name": name, **{side: asdict(row[side]) for side in both}})
        gc.collect()
    return {
        "benchmark": "maskbench.paired",
        "environment": environment(),
        "files": len(files),
        "refused": refused,
        "summary": {side: _summary([row[side] for row in rows]) for side in both},
        "rows": rows,
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    compiles = [row["compile"] for row in rows]
    firsts = np.array([row["first_mask"] for row in rows])
    masks = np.array([mask for row in rows for mask in row["masks"]])
    return {
        "schemas": len(rows),
        "masks": len(masks),
        "compile_ms_mean": statistics.fmean(compiles),
        "first_mask_ms_p50": float(np.percentile(firsts, 50)),
        "first_mask_ms_p99": float(np.percentile(firsts, 99)),
        "mask_us_p50": float(np.percentile(masks, 50)),
        "mask_us_mean": float(masks.mean()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Prints one line on stderr for input that can't be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder or tar archive of files")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its folder")
    parser.add_argument("--every", type=int, default=1, help="take every Nth file only")
    parser.add_argument("--json", type=Path, help="write every schema's times here")
    options = parser.parse_args(arguments)
    try:
        check_out(options.json, "--json")
        vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
        with open_sample(options.source) as files:
            chosen = dict(list(files.items())[:: options.every])
            with progress("measuring", len(chosen)) as advance:
                result = measure(chosen, vocabulary, advance)
    except GuidedError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    write_json(result, options.json)
    ours, theirs = result["summary"].values()
    for name in ours:
        print(
            f"{name:20} {ours[name]:10.3f} {theirs[name]:10.3f} {ours[name] / theirs[name]:8.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
