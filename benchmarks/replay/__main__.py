"""Real documents replayed in vLLM engines: what a token costs unguided, guided, with
drafts of forced text.

    python -m benchmarks.replay --model DIR --tokenizer DIR --sample SAMPLE --rows 1,8,64 --out A.json.gz
    python -m benchmarks.replay --read A.json.gz,B.json.gz --out BOTH.json.gz

Every sampled token is forced to that of a document, by the same few kernels in all
ways: weights don't matter, and a draft is accepted where it is right. `unforced` counts
those accepted at places that the grammar leaves open: 0, unless a drafter knows more
than the grammar. Each way has an engine of its own, in a process of its own; `+ngram`
gives it vLLM's `ngram_gpu`. Documents and their order are the same for all ways. The
engines of a call share its GPUs and take turns, so that slow changes of the machine
affect all of them.

    tokens/s     with a queue behind: from the first step with all rows taken to the step that leaves fewer
                 requests than rows. Nothing runs before all are handed in. Prompts (8 tokens) are part of it.
    ms/token     of a row in that time; `document ms`: a document of mean length at this pace
    ratio        of ms/token, to `unguided` with the same drafter: of runs side by side, the median
    forwards     a token, each row's first included; `bound`: if every forced token were a draft in time;
                 `alone`: with the drafts that must follow, all verified, and none that earlier answers taught
    batch ms     so many documents begun at once, until the last one ends

The file also has `plain_step_ms` and `draft_step_ms`, of steps without an accepted
draft and with one; `prompt_step_ms`, of those that begin a request or during which such
a step is launched; `prompt_steps`, their part; and `thread_step_ms`, the CPU time of
vLLM's main thread in a step with a queue behind. With `--profile` one more run of a
batch size tells how long the device works in a step, and at what.

A document is written in one of `--forms`: `compact` and `spaced` hold the grammar to
that whitespace; with `flexible` (written as `spaced`), `indent2` and `indent4` (as
`json.dumps` indents) it leaves whitespace open.

`--ways ""` counts forward passes, without an engine: they depend on the tokenizer, not
on the machine. Then `taught` is as `alone`, with what earlier answers taught: each
document was answered three times before.

Figures are medians; `spread` is that of tokens/s between repetitions, in percent. The
file is written after each way, so ways may be measured by calls of their own and read
together. Exit code 1: an output was not its document, or a way failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.engines import run_child
from benchmarks.replay.documents import FORMS, KINDS, Document, Documents, passes_of
from guided_plugin.bench import environment, median
from guided_plugin.cli.loading import known_names, load_vocabulary
from guided_plugin.cli.results import check_out, progress, show_table
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError

WAYS: dict[str, dict[str, Any] | None] = {
    "unguided": None,
    "guided": {"take_over": True},
    "jump": {"take_over": True, "jump_forward": True},
}
"""The plugin's options."""
_DRAFTER = "+ngram"
_NGRAM = {"method": "ngram_gpu", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_MEMORY = 0.88
"""Of a GPU's memory, for the engines of a call together."""
_COLUMNS = (
    *(("way", "{way}"), ("kind", "{kind}"), ("form", "{form}"), ("rows", "{rows}")),
    *(
        ("tokens/s", "{tokens_per_second:.0f}"),
        ("spread", "{spread:.1f}"),
        ("ms/token", "{ms_per_token:.3f}"),
    ),
    *(
        ("ratio", "{ratio}"),
        ("ms/step", "{ms_per_step:.3f}"),
        ("forwards", "{forwards_per_token:.3f}"),
    ),
    *(("bound", "{bound:.3f}"), ("alone", "{alone}")),
    *(("batch ms", "{batch_ms:.1f}"), ("ratio", "{batch_ratio}")),
    *(
        ("document ms", "{document_ms:.1f}"),
        ("wrong", "{wrong}"),
        ("unforced", "{unforced}"),
    ),
)
_COUNTS = (
    ("kind", "{kind}"),
    ("form", "{form}"),
    ("documents", "{documents}"),
    ("tokens", "{tokens}"),
)
_COUNTS += (("bound", "{bound:.3f}"), ("alone", "{alone:.3f}"), ("taught", "{taught}"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parsed(given)
    try:
        check_out(options.out, "--out")
        if options.read:
            result = merged(
                [
                    json.loads(gzip.decompress(path.read_bytes()))
                    for path in options.read
                ]
            )
        else:
            result = measure(
                options, "python -m benchmarks.replay " + shlex.join(given)
            )
    except GuidedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result["figures"] = compared(result["figures"])
    write(result, options.out)
    if result["figures"]:
        show_table(
            [{**figure, **_told(figure)} for figure in result["figures"]], _COLUMNS
        )
    elif not options.read:
        show_table([{"taught": "-", **one} for one in result["counts"]], _COUNTS)
    for way, failure in result["failed"].items():
        print(f"{way} failed: {failure}", file=sys.stderr)
    return int(
        bool(result["failed"]) or any(figure["wrong"] for figure in result["figures"])
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(name: str, default: Any, what: str, kind: Any = None) -> None:
        parser.add_argument(
            name, default=default, help=what, type=kind or type(default)
        )

    add("--model", str(MODEL_DIR), "folder of a model")
    add("--tokenizer", None, "tokenizer folder; the model's if not given", str)
    add(
        "--sample",
        None,
        "documents: a folder or a tar archive of MaskBench files",
        Path,
    )
    add(
        "--ways",
        "unguided,guided,jump",
        f"of {', '.join(WAYS)}, each also with {_DRAFTER}",
    )
    add("--kinds", "tools,real", f"of {', '.join(KINDS)}")
    add("--forms", "compact", f"of {', '.join(FORMS)}")
    add("--rows", [1, 8, 64], "batch sizes", _counts)
    add(
        "--profile",
        [],
        "batch sizes of which the device's part of a step is measured too",
        _counts,
    )
    add("--documents", 256, "different documents of a kind")
    add("--longest", 512, "tokens that a document may have")
    add("--queue", 6, "documents of a run for each row")
    add(
        "--least",
        16,
        "documents of a run at least; half of them one batch after the other",
    )
    add("--repetitions", 3, "measured runs a figure, after one that warms up")
    add("--drafts", 7, f"tokens that {_DRAFTER} drafts, and of the bound")
    add("--seed", 1, "of the choice of documents")
    add("--runner", "v2", "vLLM's model runner: v1 (without drafts) or v2")
    add("--device", "cuda", "cpu or cuda")
    add("--engine", {}, "more arguments of the engines, as JSON", json.loads)
    add("--plugin", {}, "more options of the plugin, as JSON", json.loads)
    add(
        "--limit",
        540.0,
        "seconds it may take; batch sizes that were measured then count",
    )
    add(
        "--read",
        [],
        "files of earlier calls, to show together",
        lambda text: list(map(Path, text.split(","))),
    )
    add("--out", None, "also write the JSON here, compressed: FILE.json.gz", Path)
    parser.add_argument(
        "--open",
        action="store_true",
        help="objects are open unless the schema closes them",
    )
    options = parser.parse_args(arguments)
    if options.sample is None and not options.read:
        parser.error("--sample or --read is needed")
    if not set(options.profile) <= set(options.rows):
        parser.error("--profile has batch sizes that --rows lacks")
    if options.profile and options.device == "cpu":
        parser.error("--profile is of a GPU")
    return options


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def measure(options: argparse.Namespace, command: str) -> dict[str, Any]:
    """Choose the documents, run the engines one after the other; written after each."""
    options.kinds = known_names(options.kinds, KINDS, "--kinds")
    options.forms = known_names(options.forms, FORMS, "--forms")
    both = [way + drafter for way in WAYS for drafter in ("", _DRAFTER)]
    options.ways = known_names(options.ways, both, "--ways") if options.ways else []
    start = time.monotonic()
    legs, left_out = chosen(options)
    options.limit -= time.monotonic() - start
    result: dict[str, Any] = {
        "command": command,
        "date": None,
        "benchmark": "replay",
        "left_out": left_out,
    }
    result |= {
        "options": json.loads(json.dumps(vars(options), default=str)),
        "figures": [],
        "failed": {},
    }
    result["counts"] = [counted(one) for one in legs]
    if not options.ways:
        here = environment("cpu")
        return result | {"date": here["date"], "environment": here}
    with (
        progress("replay", len(options.ways)) as advance,
        tempfile.NamedTemporaryFile() as turns,
        ThreadPoolExecutor(len(options.ways)) as pool,
    ):
        running = {
            pool.submit(run_way, options, way, legs, turns.name): way
            for way in options.ways
        }
        for ended in as_completed(running):
            way = running[ended]
            try:
                found = ended.result()
                result["figures"] += [
                    {"way": way, **figure} for figure in found["figures"]
                ]
                result |= {
                    "environment": found["environment"],
                    "date": found["environment"]["date"],
                }
            except GuidedError as error:
                result["failed"][way] = str(error)
            write(result, options.out)
            advance(f"replay, {way}")
    return result


def chosen(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The documents of every kind and form as a child takes them, and how many were
    left out."""
    vocabulary = load_vocabulary(Path(options.tokenizer or options.model))
    given = options.longest, options.seed, options.drafts
    known = Documents(options.sample, vocabulary, *given, strict=not options.open)
    pairs = [
        (kind, form)
        for kind in options.kinds
        # which has no form
        for form in (options.forms if kind != "free" else [next(iter(FORMS))])
    ]
    legs = []
    with progress("choosing documents", len(pairs) * options.documents) as advance:
        for kind, form in pairs:
            documents = known.choose(kind, form, options.documents, advance)
            legs.append(leg(kind, form, documents, options.drafts))
            if not options.ways and kind in ("tools", "real"):
                legs[-1]["taught"] = known.taught(documents)
    return legs, known.left_out


def leg(kind: str, form: str, documents: list[Document], drafts: int) -> dict[str, Any]:
    """These documents, and their digest."""
    tokens = [document.tokens for document in documents]
    digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
    known = [dataclasses.asdict(document) for document in documents]
    return {
        "kind": kind,
        "form": form,
        "digest": digest,
        "drafts": drafts,
        "documents": known,
    }


def counted(leg: dict[str, Any]) -> dict[str, Any]:
    """The forward passes of documents, a token."""
    documents = leg["documents"]
    own = {name: leg[name] for name in ("kind", "form", "digest")}
    counts = {**own, "documents": len(documents), **passes_of(documents, leg["drafts"])}
    return counts | (
        {"taught": round(leg["taught"] / counts["tokens"], 4)}
        if "taught" in leg
        else {}
    )


def run_way(
    options: argparse.Namespace, way: str, legs: list[dict[str, Any]], turns: str
) -> dict[str, Any]:
    """What the engine of a way answers. `turns`: the file by which engines take
    turns."""
    plugin = WAYS[way.removesuffix(_DRAFTER)]
    engine = dict(options.engine)
    if options.device != "cpu":
        engine.setdefault(
            "gpu_memory_utilization", round(_MEMORY / len(options.ways), 2)
        )
    if way.endswith(_DRAFTER):
        engine["speculative_config"] = {
            **_NGRAM,
            "num_speculative_tokens": options.drafts,
        }
    variables = {
        "VLLM_USE_V2_MODEL_RUNNER": "1" if options.runner == "v2" else "0",
        "GUIDED_PLUGIN": "0"
        if plugin is None
        else json.dumps({**plugin, **options.plugin}),
    }
    taken = (
        "model",
        "rows",
        "profile",
        "longest",
        "queue",
        "least",
        "repetitions",
        "device",
    )
    asked = {
        **{name: getattr(options, name) for name in taken},
        "tokenizer": options.tokenizer or options.model,
        "engine": engine,
        "legs": legs,
        "turns": turns,
        "guided": plugin is not None,
    }
    where = f"benchmarks.replay, {way}"
    with tempfile.TemporaryDirectory() as folder:
        asked["traces"] = folder
        return run_child(
            "benchmarks.replay.child", asked, variables, options.limit, where
        )


def merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Several results as one. Raises GuidedError where a kind had other documents in
    one of them."""
    digests: dict[tuple[str, str], str] = {}
    for figure in (figure for result in results for figure in result["figures"]):
        if (
            digests.setdefault((figure["kind"], figure["form"]), figure["digest"])
            != figure["digest"]
        ):
            raise GuidedError(
                f"{figure['kind']} {figure['form']} had different documents in these files",
                where="--read",
                hint="measure with the same --sample, --seed, --documents, --longest and tokenizer",
            )
    figures = [figure for result in results for figure in result["figures"]]
    failed = {
        way: failure for result in results for way, failure in result["failed"].items()
    }
    commands = [result["command"] for result in results]
    return {
        **results[0],
        "command": "; ".join(commands),
        "figures": figures,
        "failed": failed,
    }


def compared(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures against `unguided` with the same drafter, in the order of the table."""

    def ratio(
        figure: dict[str, Any], other: dict[str, Any] | None, name: str
    ) -> float | None:
        """By time: of the runs that took turns."""
        pairs = zip(figure["runs"], other["runs"] if other else (), strict=False)
        found = [one[name] / same[name] for one, same in pairs]
        if name == "tokens_per_second":
            found = [1 / one for one in found]
        return median(found) if found else None

    def case(figure: dict[str, Any], way: str) -> tuple[Any, ...]:
        return way, figure["kind"], figure["form"], figure["rows"]

    base = {case(figure, figure["way"]): figure for figure in figures}
    shown = []
    for figure in figures:
        drafter = _DRAFTER if figure["way"].endswith(_DRAFTER) else ""
        other = base.get(case(figure, f"unguided{drafter}"))
        paces = [run["tokens_per_second"] for run in figure["runs"]]
        pace = figure["tokens_per_second"]
        shown.append(
            {
                **figure,
                "spread": (max(paces) - min(paces)) / pace * 100,
                "ms_per_token": figure["rows"] / pace * 1e3,
                "ratio": ratio(figure, other, "tokens_per_second"),
                "batch_ratio": ratio(figure, other, "batch_ms"),
            }
        )
    return sorted(
        shown, key=lambda figure: (figure["kind"], figure["form"], figure["rows"])
    )


def _told(figure: dict[str, Any]) -> dict[str, str]:
    names = "ratio", "batch_ratio", "alone"  # the last one is younger than some files
    return {
        name: "-" if figure.get(name) is None else f"{figure[name]:.3f}"
        for name in names
    }


def write(result: dict[str, Any], path: Path | None) -> None:
    """Compressed, the same bytes for the same result."""
    if path is not None:
        partly = path.with_name(path.name + ".part")
        partly.write_bytes(
            gzip.compress((json.dumps(result, indent=1) + "\n").encode(), 9, mtime=0)
        )
        os.replace(partly, path)


if __name__ == "__main__":
    sys.exit(main())
