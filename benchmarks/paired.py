"""Compiles and masks of a sample's schemas, in turns with llguidance's own JSON
compiler: what exact answers cost.

    python -m benchmarks.paired SAMPLE --tokenizer DIR [--every N] [--out FILE]

Both read the same schemas in one thread, first one and then the other, and fill the
same masks along the first valid instance that both accept. Schemas that one of them
refuses are counted and left out. Times are processor time of the thread.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

from benchmarks.harness import Json, Options, given, head, write
from benchmarks.samples import TextTokens, open_sample, text_of
from benchmarks.tables import progress
from guided_plugin.cli.loading import load_tokenizer, show_error
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

_OPTIONS = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}

Matcher = tuple[Callable[[Any], object], Callable[[int], object]]
"""How one fills a mask, and how it accepts a token."""
Side = Callable[[Json], Matcher | None]
"""From a schema to a matcher; None where it is refused."""


def ours(vocabulary: Vocabulary) -> Side:
    """This package."""
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

    def begin(schema: Json) -> Matcher | None:
        try:
            spec = OutputSpec.json_schema(schema, strict=False, whitespace="flexible")
            grammar = compiler.compile(spec)
        except GuidedError:
            return None
        backend = compiler.backend(grammar.backend)
        batch = backend.batch([backend.start(grammar, vocabulary.stop_token_ids)])
        return (
            lambda mask: batch.fill(mask, [0]),
            lambda token: batch.accept([token])[0],
        )

    return begin


def theirs(vocabulary: Vocabulary) -> Side:
    """llguidance by itself."""
    tokenizer = Tokenizers(vocabulary).plain
    read = llguidance.LLMatcher.grammar_from_json_schema

    def begin(schema: Json) -> Matcher | None:
        try:
            grammar = read(json.dumps(schema), defaults=_OPTIONS)
        except ValueError:
            return None
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            return None
        return (
            lambda mask: matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes),
            matcher.consume_token,
        )

    return begin


def begun(side: Side, schema: Json, mask: Any) -> tuple[Matcher | None, Json]:
    """A matcher, and the ms that its compile took alone and with the first mask."""
    start = time.thread_time_ns()
    matcher = side(schema)
    times: Json = {
        "compile": (time.thread_time_ns() - start) / 1e6,
        "masks": [],
    }
    if matcher is not None:
        matcher[0](mask)
        times["first_mask"] = (time.thread_time_ns() - start) / 1e6
    return matcher, times


def walked(matcher: Matcher, tokens: list[int], mask: Any) -> list[float]:
    """Microseconds of the masks along an output; empty where it is not accepted."""
    fill, accept = matcher
    times: list[float] = []
    for token in tokens:
        start = time.thread_time_ns()
        fill(mask)
        times.append((time.thread_time_ns() - start) / 1e3)
        if not accept(token):
            return []
    return times


def measure(
    files: dict[str, Path], vocabulary: Vocabulary, note: Callable[[str], None]
) -> Json:
    """Measure all files; the result is JSON."""
    both = {"guided_plugin": ours(vocabulary), "llguidance": theirs(vocabulary)}
    tokens_of = TextTokens(vocabulary)
    mask = np.zeros((1, vocabulary.words), np.int32)
    refused = dict.fromkeys(both, 0)
    rows = []
    distinct = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    for engine in both.values():  # what is built once for a vocabulary
        begun(engine, distinct, mask)
    gc.disable()
    for number, (name, path) in enumerate(files.items()):
        note(name)
        document = json.loads(path.read_bytes())
        row: Json = {"name": name}
        matchers = {}
        for side in list(both)[:: 1 if number % 2 else -1]:
            matcher, row[side] = begun(
                both[side],
                document["schema"],
                mask,
            )
            if matcher is None:
                refused[side] += 1
            else:
                matchers[side] = matcher
        if len(matchers) < len(both):
            continue
        valid = [test["data"] for test in document["tests"] if test["valid"]]
        tokens = tokens_of(text_of(valid[0])) if valid else []
        walks = {
            side: walked(matcher, tokens, mask) for side, matcher in matchers.items()
        }
        if all(walks.values()):
            for side, walk in walks.items():
                row[side]["masks"] = walk
        rows.append(row)
        gc.collect()
    return {
        "benchmark": "paired",
        "files": len(files),
        "refused": refused,
        "summary": {side: _summary([row[side] for row in rows]) for side in both},
        "rows": rows,
    }


def _summary(rows: list[Json]) -> Json:
    firsts = np.array([row["first_mask"] for row in rows])
    masks = np.array([mask for row in rows for mask in row["masks"]])
    return {
        "schemas": len(rows),
        "masks": len(masks),
        "compile_ms_mean": statistics.fmean(row["compile"] for row in rows),
        "first_mask_ms_p50": float(np.percentile(firsts, 50)),
        "first_mask_ms_p99": float(np.percentile(firsts, 99)),
        "mask_us_p50": float(np.percentile(masks, 50)),
        "mask_us_mean": float(masks.mean()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Prints one line on stderr for input that can't be used."""
    parser = Options(__doc__)
    parser.sample()
    options = parser.parse_args(arguments)
    result = head("benchmarks.paired", given(arguments))
    try:
        vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
        with open_sample(options.source) as files:
            chosen = dict(list(files.items())[:: options.every])
            with progress("measuring", len(chosen)) as advance:
                result |= measure(chosen, vocabulary, advance)
    except GuidedError as error:
        return show_error(error)
    write(result, options.out)
    own, other = result["summary"].values()
    for name in own:
        ratio = own[name] / other[name]
        print(f"{name:20} {own[name]:10.3f} {other[name]:10.3f} {ratio:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
