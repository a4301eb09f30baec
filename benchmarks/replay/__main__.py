"""Real documents replayed in vLLM engines: what a token costs unguided, guided, with
drafts of forced text.

    python -m benchmarks.replay --model DIR --tokenizer DIR --sample SAMPLE --rows 1,8,64 --out A.json.gz

Every sampled token is forced to that of a document, by the same few kernels in all
ways: weights don't matter, and a draft is accepted where it is right. `unforced` counts
those accepted at places that the grammar leaves open: 0, unless a drafter knows more
than the grammar. Each way has an engine of its own, in a process of its own; `+ngram`
gives it vLLM's `ngram_gpu`, and with `+new` no two requests have the same schema.
Documents and their order are the same for all ways. The engines of a call share its
GPUs and take turns, so that slow changes of the machine affect all of them.

    tokens/s     with a queue behind: from the first step with all rows taken to the step that leaves fewer
                 requests than rows. Nothing runs before all are handed in. Prompts (8 tokens) are part of it.
    ms/token     of a row in that time; `document ms`: a document of mean length at this pace
    ratio        of ms/token, to `unguided` with the same drafter: of runs side by side, the median
    ms/step, p99 a mean step in that time, and one of which 99 in 100 are no longer
    forwards     a token, each row's first included; `bound`: if every forced token were a draft in time;
                 `alone`: with the drafts that must follow, all verified, and none that earlier answers taught
    batch ms     so many documents begun at once, until the last one ends

The file also has `plain_step_ms` and `draft_step_ms`, of steps without an accepted
draft and with one; `prompt_step_ms`, of those that begin a request or during which such
a step is launched; `prompt_steps`, their part; and `thread_step_ms`, the CPU time of
vLLM's main thread in a step with a queue behind.

A document is written in one of `--forms`: `compact` and `spaced` hold the grammar to
that whitespace; with `flexible` (written as `spaced`), `indent2` and `indent4` (as
`json.dumps` indents) it leaves whitespace open.

`--ways ""` counts forward passes, without an engine: they depend on the tokenizer, not
on the machine. Then `taught` is as `alone`, with what earlier answers taught: each
document was answered three times before.

Figures are medians; `spread` is that of tokens/s between repetitions, in percent. Exit
code 1: an output was not its document, or a way failed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Collection, Sequence
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
)
from benchmarks.replay.documents import FORMS, KINDS, Document, Documents, passes_of
from benchmarks.tables import progress, show_table
from benchmarks.turns import median
from guided_plugin.cli.loading import InputError, load_vocabulary, show_error
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError, did_you_mean

WAYS: dict[str, Json | None] = {
    "unguided": None,
    "guided": {"take_over": True},
    "jump": {"take_over": True, "jump_forward": True},
}
"""The plugin's options."""
_DRAFTER = "+ngram"
_NEW = "+new"
_NGRAM = {"method": "ngram_gpu", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_DRAFTS = 7
"""That `+ngram` drafts, and of the bound."""
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
    ("forwards", "{forwards_per_token:.3f}"),
    ("bound", "{bound:.3f}"),
    ("alone", "{alone:.3f}"),
    ("batch ms", "{batch_ms:.1f}"),
    ("ratio", "{batch_ratio}"),
    ("document ms", "{document_ms:.1f}"),
    ("wrong", "{wrong}"),
    ("unforced", "{unforced}"),
)
_COUNTS = (
    ("kind", "{kind}"),
    ("form", "{form}"),
    ("documents", "{documents}"),
    ("tokens", "{tokens}"),
    ("bound", "{bound:.3f}"),
    ("alone", "{alone:.3f}"),
    ("taught", "{taught}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = parsed(given(arguments))
    try:
        result = measure(options, head("benchmarks.replay", given(arguments)))
    except GuidedError as error:
        return show_error(error)
    failed = finish(result, options.out, _COLUMNS)
    if not result["figures"]:
        show_table(result["counts"], _COUNTS)
    wrong = any(figure["wrong"] for figure in result["figures"])
    return int(failed or wrong)


def parsed(arguments: Sequence[str]) -> Any:
    """The options."""
    parser = Options(__doc__)
    add = parser.add
    ways = ", ".join(WAYS)
    add("--model", str(MODEL_DIR), "folder of a model")
    add("--tokenizer", None, "tokenizer folder; the model's if not given", str)
    add("--sample", None, "MaskBench files: a folder or a tar archive", Path)
    add(
        "--ways",
        "unguided,guided,jump",
        f"{ways}, with {_DRAFTER}, {_NEW} or both",
    )
    add(
        "--kinds",
        "tools,real",
        f"of {', '.join(KINDS)}",
    )
    add(
        "--forms",
        "compact",
        f"of {', '.join(FORMS)}",
    )
    add("--rows", [1, 8, 64], "batch sizes", counts)
    add("--documents", 256, "different documents of a kind")
    add("--longest", 512, "tokens that a document may have")
    add("--queue", 6, "documents of a run for each row")
    add("--least", 16, "documents of a run at least; half of them batch after batch")
    add("--repetitions", 3, "measured runs a figure, after one that warms up")
    add("--runner", "v2", "vLLM's model runner: v1 (without drafts) or v2")
    add("--plugin", {}, "more options of the plugin, as JSON", json.loads)
    add("--limit", 540.0, "seconds; batch sizes that were measured then count")
    parser.engine()
    options = parser.parse_args(arguments)
    if options.sample is None:
        parser.error("--sample is needed")
    return options


def measure(options: Any, result: Json) -> Json:
    """Choose the documents, and run an engine for each way."""
    options.kinds = _known(options.kinds, KINDS, "--kinds")
    options.forms = _known(options.forms, FORMS, "--forms")
    ends = ("", _DRAFTER, _NEW, _DRAFTER + _NEW)
    known = [way + end for way in WAYS for end in ends]
    ways = _known(options.ways, known, "--ways") if options.ways else []
    start = time.monotonic()
    legs, left_out = chosen(options, counting=not ways)
    options.limit -= time.monotonic() - start
    result |= {
        "benchmark": "replay",
        "left_out": left_out,
        "options": json.loads(json.dumps(vars(options), default=str)),
        "counts": [counted(one) for one in legs],
        "figures": [],
        "failed": [],
    }
    if not ways:
        return result

    def take(engine: Engine, answer: Json) -> None:
        figures = [{"way": engine.name, **one} for one in answer["figures"]]
        result["figures"] = compared([*result["figures"], *figures])

    engines = [_engine(options, way, legs) for way in ways]
    measured(result, engines, options, take, together=True)
    return result


def chosen(options: Any, *, counting: bool) -> tuple[list[Json], dict[str, int]]:
    """The documents of every kind and form as a child takes them, and how many were
    left out."""
    vocabulary = load_vocabulary(Path(options.tokenizer or options.model))
    known = Documents(
        options.sample,
        vocabulary,
        options.longest,
        _DRAFTS,
    )
    legs = []
    with progress("choosing documents", len(options.kinds)) as advance:
        for kind in options.kinds:
            # Free text has no form.
            for form in options.forms[: 1 if kind == "free" else None]:
                documents = known.choose(kind, form, options.documents)
                legs.append(leg(kind, form, documents, _DRAFTS))
                if counting and kind != "free":
                    legs[-1]["taught"] = known.taught(documents)
            advance()
    return legs, known.left_out


def leg(kind: str, form: str, documents: list[Document], drafts: int) -> Json:
    """These documents, and their digest."""
    tokens = json.dumps([document.tokens for document in documents])
    return {
        "kind": kind,
        "form": form,
        "digest": hashlib.sha256(tokens.encode()).hexdigest()[:16],
        "drafts": drafts,
        "documents": [dataclasses.asdict(document) for document in documents],
    }


def counted(leg: Json) -> Json:
    """The forward passes of documents, a token."""
    own = {name: leg[name] for name in ("kind", "form", "digest")}
    passes = passes_of(leg["documents"], leg["drafts"])
    taught = round(leg["taught"] / passes["tokens"], 4) if "taught" in leg else None
    return {
        **own,
        "documents": len(leg["documents"]),
        **passes,
        "taught": taught,
    }


def _engine(options: Any, way: str, legs: list[Json]) -> Engine:
    plugin = WAYS[way.partition("+")[0]]
    engine = dict(options.engine)
    if _DRAFTER in way:
        engine["speculative_config"] = {**_NGRAM, "num_speculative_tokens": _DRAFTS}
    taken = ("model", "tokenizer", "rows", "longest", "queue", "least", "repetitions")
    question = {
        **{name: getattr(options, name) for name in taken},
        "engine": engine,
        "legs": legs,
        "guided": plugin is not None,
        "new": _NEW in way,
    }
    return Engine(
        way,
        "benchmarks.replay.child",
        question,
        None if plugin is None else {**plugin, **options.plugin},
        v2=options.runner == "v2",
    )


def compared(figures: list[Json]) -> list[Json]:
    """Figures against `unguided` with the same drafter, in the order of the table."""

    def case(figure: Json, way: str) -> tuple[Any, ...]:
        return way, figure["kind"], figure["form"], figure["rows"]

    base = {case(figure, figure["way"]): figure for figure in figures}
    for figure in figures:
        drafter = _DRAFTER if _DRAFTER in figure["way"] else ""
        other = base.get(case(figure, f"unguided{drafter}"), {"runs": []})
        paces = [run["tokens_per_second"] for run in figure["runs"]]
        pairs = list(
            zip(
                figure["runs"],
                other["runs"],
                strict=False,
            )
        )
        pace = figure["tokens_per_second"]
        figure["spread"] = (max(paces) - min(paces)) / pace * 100
        figure["ms_per_token"] = figure["rows"] / pace * 1e3
        figure["ratio"] = _ratio(
            same["tokens_per_second"] / one["tokens_per_second"] for one, same in pairs
        )
        figure["batch_ratio"] = _ratio(
            one["batch_ms"] / same["batch_ms"] for one, same in pairs
        )
    return sorted(figures, key=lambda one: (one["kind"], one["form"], one["rows"]))


def _ratio(found: Any) -> float | None:
    """Of the runs that took turns."""
    found = list(found)
    return median(found, 3) if found else None


def _known(text: str, names: Collection[str], where: str) -> list[str]:
    """The values of an option, separated by commas, each of a fixed set."""
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in names:
            what = where.removeprefix("--")
            raise InputError(
                f"unknown {what} {name!r}", where=where, hint=did_you_mean(name, names)
            )
    return chosen


if __name__ == "__main__":
    sys.exit(main())
