"""Real documents replayed in vLLM engines: what a token costs unguided, guided, with
drafts of forced text.

    python -m benchmarks.replay --model DIR --tokenizer DIR --sample SAMPLE --rows 1,8,64 --out A.json.gz

Every sampled token is forced to that of a document, by the same few kernels in all
ways: weights don't matter, and a draft is accepted where it is right. Each way has an
engine of its own, in a process of its own; with `+new` no two requests have the same
schema. Documents and their order are the same for all ways. The engines of a call share
its GPUs and take turns, so that slow changes of the machine affect all of them; with
`--engine '{"kv_cache_memory_bytes": N, "gpu_memory_utilization": SHARE}'` all start at
the same time. Their runner is V2, and V1 (which replays no drafts) on a CPU.

    tokens/s     with a queue behind: from the first step with all rows taken to the step that leaves fewer
                 requests than rows. Nothing runs before all are handed in. Prompts (8 tokens) are part of it.
    ms/token     of a row in that time
    ratio        of ms/token, to `unguided`: of runs side by side, the median
    ms/step, p99 a mean step in that time, and one of which 99 in 100 are no longer
    thread ms    CPU time of vLLM's main threads in a step
    forwards     a token, each row's first included

A document is written in one of `--forms`: `compact` and `spaced` hold the grammar to
that whitespace; with `indented`, as `json.dumps` indents, it leaves whitespace open.

Figures are medians; `spread` is that of tokens/s between repetitions, in percent. Exit
code 1: an output was not its document, or a way failed.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Engine,
    Json,
    Options,
    counts,
    finish,
    given,
    head,
    measured,
    median,
)
from benchmarks.replay.documents import FORMS, KINDS, Documents
from guided_plugin.cli.loading import load_vocabulary, show_error
from guided_plugin.errors import GuidedError

_NEW = "+new"
_OPTIONS: dict[str, Json | None] = {
    "unguided": None,
    "guided": {"take_over": True},
    "jump": {"take_over": True, "jump_forward": True},
}
"""The plugin's, by way."""
WAYS = [way + end for way in _OPTIONS for end in ("", _NEW)]
_COLUMNS = (
    ("way", "{way}"),
    ("kind", "{kind}"),
    ("form", "{form}"),
    ("rows", "{rows}"),
    ("tokens/s", "{tokens_per_second:.0f}"),
    ("spread", "{spread:.1f}"),
    ("ms/token", "{ms_per_token:.3f}"),
    ("ratio", "{ratio}"),
    ("ms/step", "{ms_per_step:.3f}"),
    ("p99", "{p99_step_ms:.3f}"),
    ("thread ms", "{thread_step_ms:.3f}"),
    ("forwards", "{forwards_per_token:.3f}"),
    ("wrong", "{wrong}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = parsed(given(arguments))
    result = head("benchmarks.replay", given(arguments))
    result |= {"benchmark": "replay", "figures": []}
    try:
        legs, result["left_out"] = chosen(options)
    except GuidedError as error:
        return show_error(error)

    def take(engine: Engine, answer: Json) -> None:
        figures = [{"way": engine.name, **one} for one in answer["figures"]]
        result["figures"] = compared([*result["figures"], *figures])

    engines = [_engine(options, way, legs) for way in options.ways]
    measured(result, engines, options, take, together=True)
    failed = finish(result, options.out, _COLUMNS)
    wrong = any(figure["wrong"] for figure in result["figures"])
    return int(failed or wrong)


def parsed(arguments: Sequence[str]) -> Any:
    """The options."""
    parser = Options(__doc__)
    parser.model(needs_sample=True)
    parser.several("--ways", list(_OPTIONS), WAYS, "what is compared")
    parser.several("--kinds", list(KINDS), KINDS, "of documents")
    parser.several("--forms", ["compact"], FORMS, "of documents")
    parser.add("--rows", [1, 8, 64], "batch sizes", counts)
    parser.add("--documents", 256, "different documents of a kind")
    parser.add("--longest", 512, "tokens that a document may have")
    parser.add("--queue", 6, "documents of a run for each row")
    parser.add("--repetitions", 3, "measured runs a figure, after one that warms up")
    parser.add("--plugin", {}, "more options of the plugin, as JSON", json.loads)
    parser.engine(540.0)
    return parser.parse_args(arguments)


def chosen(options: Any) -> tuple[list[Json], Json]:
    """The documents of every kind and form as a child takes them, and how many were
    left out."""
    vocabulary = load_vocabulary(Path(options.tokenizer or options.model))
    known = Documents(options.sample, vocabulary, options.longest)
    legs = []
    for kind, form in itertools.product(options.kinds, options.forms):
        documents = known.choose(kind, form, options.documents)
        legs.append({"kind": kind, "form": form, "documents": documents})
    return legs, dict(known.left_out)


def _engine(options: Any, way: str, legs: list[Json]) -> Engine:
    plugin = _OPTIONS[way.removesuffix(_NEW)]
    taken = ("model", "tokenizer", "engine", "rows", "longest", "queue", "repetitions")
    question = {
        **{name: getattr(options, name) for name in taken},
        "legs": legs,
        "new": way.endswith(_NEW),
    }
    return Engine(
        way,
        "benchmarks.replay.child",
        question,
        None if plugin is None else {**plugin, **options.plugin},
        v2=options.device != "cpu",
    )


def compared(figures: list[Json]) -> list[Json]:
    """Figures against `unguided`, in the order of the table."""

    def case(figure: Json) -> tuple[Any, ...]:
        return figure["kind"], figure["form"], figure["rows"]

    base = {case(one): one["runs"] for one in figures if one["way"] == "unguided"}
    for figure in figures:
        pace = figure["tokens_per_second"]
        paces = [run["tokens_per_second"] for run in figure["runs"]]
        figure["spread"] = (max(paces) - min(paces)) / pace * 100
        figure["ms_per_token"] = figure["rows"] / pace * 1e3
        # of the runs that took turns
        ratios = [
            other["tokens_per_second"] / own
            for own, other in zip(paces, base.get(case(figure), ()), strict=False)
        ]
        figure["ratio"] = median(ratios, 3) if ratios else None
    return sorted(figures, key=case)


if __name__ == "__main__":
    sys.exit(main())
