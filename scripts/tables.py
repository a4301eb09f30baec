"""The tables with measured figures that stand in README.md and docs/, made from raw
files of benchmarks/results/.

`scripts/figures.py` writes them into the pages. To show a newer measurement of the same
shape, change the name of its file in `TABLES`, the last thing here. Rows of several
files stand below the names of their hosts; no cell is made from two files.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

__all__ = ["TABLES", "Table"]

Raw = Mapping[str, Any]
Row = Sequence[Any]


class Table(NamedTuple):
    """A table: its raw file without `.json.gz`, and what makes its rows, the heading
    first."""

    file: str
    rows: Callable[[Raw], Iterator[Row]]
    said: str = "Measured once."
    """How often it was measured, and what the cells are."""
    more: tuple[str, ...] = ()
    """Files of the same shape, whose rows stand below those of the first."""


_ENGINES = {
    "plugin": "this package",
    "guidance": "vLLM's `guidance`",
    "xgrammar": "vLLM's `xgrammar`",
}
_WAYS = {
    "flexible": "this package: `flexible`, the default",
    "spaced": "this package: `spaced`",
    "compact": "this package: `compact`",
    "flexible+open": "this package: `flexible`, `strict` false",
    "flexible+close": "this package: `flexible`, `close_before_length`",
    "guidance": "vLLM's `guidance`",
    "guidance+compact": "vLLM's `guidance`, compact",
    "xgrammar": "vLLM's `xgrammar`",
    "unguided": "without a constraint",
    "tools": "`auto`, not held",
    "tools+required": "`required`, not held",
    "tools+required+held": "`required`, held: the default with `take_over`",
}
_SCHEMAS = {
    "plain": "plain",
    "maxlength": "bounded strings",
    "real-world": "real world",
}
_DOCUMENTS = {"tools": "tool calls", "real": "other schemas"}
_FORMS = ("compact", "spaced")
_REPLAYED = {
    "guided": "guided",
    "guided+new": "guided, new schemas",
    "jump": "`jump_forward`",
    "jump+new": "`jump_forward`, new schemas",
}
_LIBRARIES = {
    "auto": "this package",
    "raw-llguidance": "llguidance by itself",
    "raw-xgrammar": "xgrammar by itself",
}
_STEPS = (
    "Medians of a steady step / a whole run, by the unguided one of the same engine; "
    "in brackets the lowest and the highest run."
)


_SHORT = "8B, real-world schemas; medians, in brackets the lowest and the highest run."
_PAIRS = "Medians of pairs of runs; in brackets the lowest and the highest run."
_RUNS = "Medians of the runs; in brackets the lowest and the highest run."
_MEDIANS = "Medians only."
_COUNTED = "Counted."


def _all(rows: Sequence[Raw], /, **wanted: Any) -> list[Raw]:
    return [
        row
        for row in rows
        if all(row.get(name) == value for name, value in wanted.items())
    ]


def _one(rows: Sequence[Raw], /, **wanted: Any) -> Raw:
    (found,) = _all(rows, **wanted)
    return found


def _lines(figures: Iterable[Raw], columns: Mapping[str, str]) -> Iterator[Row]:
    """A line for each figure: headings, and how a figure is written below."""
    # A heading may stand twice: spaces at its end tell one from the other.
    yield tuple(map(str.rstrip, columns))
    for figure in figures:
        yield tuple(cell.format_map(figure) for cell in columns.values())


def _named(names: Mapping[str, str], figures: Raw) -> Iterator[Raw]:
    """The figures that have a name in the table."""
    for key, name in names.items():
        if key in figures:
            yield {"name": name, **figures[key]}


def _steps(raw: Raw) -> Iterator[Row]:
    """`benchmarks.engines`: each engine and size whose unguided step was measured."""
    yield (
        "structured output",
        "rows",
        "repetitions",
        "unguided step, ms",
        *_SCHEMAS.values(),
        "wrong outputs",
    )
    for base in _all(raw["figures"], way="unguided"):
        own = {"engine": base["engine"], "rows": base["rows"]}
        same = _all(raw["figures"], way="guided", **own)
        yield (
            _ENGINES[base["engine"]],
            base["rows"],
            len(base["all_ms"]) - 1,
            f"{base['steady_ms']:.2f}",
            *(_ratio(_all(same, schema=schema), base) for schema in _SCHEMAS),
            sum(figure["wrong_outputs"] for figure in same),
        )


def _ratio(found: Sequence[Raw], base: Raw) -> str:
    if not found:
        return "-"
    return f"{found[0]['steady_ratio']:.3f} / {_whole(found[0], base)}"


def _whole(figure: Raw, base: Raw) -> str:
    """Whole runs, by the unguided ones of the same engine and size."""
    runs = [ms / base["ms_per_step"] for ms in figure["all_ms"][1:]]
    return _between(figure["ratio"], runs)


def _steps_in_short(raw: Raw) -> Iterator[Row]:
    """The sizes that were measured with every engine."""
    figures = _all(raw["figures"], schema="real-world")
    bases = _all(raw["figures"], way="unguided")
    sizes = [one["rows"] for one in _all(figures, engine="plugin")]
    yield ("a guided run by an unguided one", *(f"{rows} rows" for rows in sizes))
    for engine, name in _ENGINES.items():
        pairs = (
            [_one(some, engine=engine, rows=rows) for some in (figures, bases)]
            for rows in sizes
        )
        yield (name, *(_whole(*pair) for pair in pairs))


def _job(raw: Raw) -> Iterator[Row]:
    """`benchmarks.answers.job`: seconds of a job, and those of the same unguided."""
    found = []
    for engine, name in _ENGINES.items():
        own = {one["way"]: one for one in _all(raw["figures"], engine=engine)}
        if own:
            seconds = {
                way: _between(one["seconds"], one["all_seconds"], 2)
                for way, one in own.items()
            }
            by = {
                way: _between(one["ratio"], one["all_ratios"])
                for way, one in own.items()
            }
            by.setdefault("closed", "-")
            right = own["new"].get("right", "-")  # older files have none
            found.append(
                {"name": name, "seconds": seconds, "by": by, "right": right, **own}
            )
    columns = {
        "structured output": "{name}",
        "unguided, s": "{seconds[unguided]}",
        "new schemas, s": "{seconds[new]}",
        "by unguided": "{by[new]}",
        "with `close_before_length`": "{by[closed]}",
        "known ones, by unguided": "{by[known]}",
        "step unguided, median / p99, ms": "{unguided[step_ms][0]:.1f} / {unguided[step_ms][1]:.1f}",
        "step with new schemas": "{new[step_ms][0]:.1f} / {new[step_ms][1]:.1f}",
        "valid": f"{{new[valid]}} of {raw['requests']}",
        "right": "{right}",
    }
    return _lines(found, columns)


def _between(middle: float, runs: Sequence[float], digits: int = 3) -> str:
    """A median, its lowest and its highest run."""
    low, high = (f"{one:.{digits}f}" for one in (min(runs), max(runs)))
    return f"{middle:.{digits}f} ({low}-{high})"


def _answers(raw: Raw) -> Iterator[Row]:
    """`benchmarks.answers`: each kind of tasks, by way of guiding."""
    columns = {
        "tasks": "{kind}",
        "of them": "{tasks:,}",
        "": "{name}",
        "right, %": "{right_percent:.1f}",
        "finished and valid": "{valid:,}",
        "cut by the limit": "{cut}",
        "refused": "{refused}",
        "told unprotected": "{unprotected}",
        "empty lists": "{empty}",
        "tokens": "{tokens:,}",
        "seconds": "{seconds:.1f}",
    }
    ways = list(_WAYS)
    found = sorted(
        raw["figures"], key=lambda one: (one["kind"], ways.index(one["way"]))
    )
    # Older files do not say how many were unprotected.
    named = ({"name": _WAYS[one["way"]], "unprotected": "-", **one} for one in found)
    return _lines(named, columns)


def _replayed(raw: Raw) -> Iterator[Row]:
    """`benchmarks.replay`: the time of a token, by that of an unguided one."""
    sizes = sorted({one["rows"] for one in raw["figures"]})
    yield ("documents", "way", *(f"{rows} rows" for rows in sizes), "wrong outputs")
    for kind, form, way in itertools.product(_DOCUMENTS, _FORMS, _REPLAYED):
        own = _all(raw["figures"], kind=kind, form=form)
        found = [_one(own, way=way, rows=rows) for rows in sizes if _all(own, way=way)]
        if found:
            ratios = [
                _spread(one, _one(own, way="unguided", rows=one["rows"]))
                for one in found
            ]
            wrong = sum(one["wrong"] for one in found)
            yield (f"{_DOCUMENTS[kind]}, `{form}`", _REPLAYED[way], *ratios, wrong)


def _spread(guided: Raw, base: Raw) -> str:
    pace = base["tokens_per_second"]
    runs = [pace / run["tokens_per_second"] for run in guided["runs"]]
    return _between(guided["ratio"], runs, 2)


def _generate(raw: Raw) -> Iterator[Row]:
    """transformers' `generate`; its script is gone."""
    columns = {
        "rows": "{rows}",
        "schema": "{name}",
        "unguided, ms": "{unguided_ms:.2f}",
        "`Guide`": "{ratio:.3f}",
        "xgrammar's own processor": "{xgrammar_ratio:.3f}",
    }
    found = _all(raw["figures"], forward="static")
    return _lines(({"name": _SCHEMAS[one["schema"]], **one} for one in found), columns)


def _first(raw: Raw) -> Iterator[Row]:
    """`benchmarks.server.first`."""
    names = {"unguided": "unguided", "known": "known schemas", "new": "new schemas"}
    columns = {
        "first token of a lone one, ms: p50": ("lone", "p50"),
        "highest": ("lone", "max"),
        "all done, s": ("seconds",),
        "others' longest pause, ms": ("others_gaps_ms", "max"),
    }
    return _bursts(raw["runs"], "100 requests at once", names, columns)


def _bursts(
    runs: Sequence[Raw],
    kind: str,
    names: Mapping[str, str],
    columns: Mapping[str, Sequence[str]],
) -> Iterator[Row]:
    """A line for each kind of burst: the median over the runs of what stands under such
    keys."""
    yield (kind, *map(str.rstrip, columns))
    for burst, name in names.items():
        found = [
            {"lone": run["first_token_ms"].get(burst), **run["bursts"][burst]}
            for run in runs
        ]
        values = (
            [reduce(getitem, keys, one) for one in found] for keys in columns.values()
        )
        yield (name, *(_between(statistics.median(each), each, 1) for each in values))


def _near_end(raw: Raw) -> Iterator[Row]:
    columns = {
        "rows": "{rows}",
        "step far from the limit": "{ratios[far]:.3f}",
        "last 48 steps": "{ratios[near]:.3f}",
        "slowest of them": "{ratios[slowest]:.3f}",
    }
    return _lines(raw["figures"], columns)


def _closing(raw: Raw) -> Iterator[Row]:
    yield ("tokenizer", "real schemas", "outputs", "valid", "told unprotected")
    for run in raw["runs"]:
        counts = run["counts"]
        ended = sum(counts.get(key, 0) for key in ("valid", "invalid", "cut by length"))
        told = len(run["told"])
        yield run["tokenizer"], counts["schemas"], ended, counts["valid"], told


def _at_rest(raw: Raw) -> Iterator[Row]:
    added = {name: f"{mib:.0f}" for name, mib in raw["added_mib"].items()}
    rest = raw["on"]["at_rest"]
    yield "what is added", "processes", "MiB"
    yield "frontend: caches and the vocabulary", 0, added["frontend"]
    yield "engine: imports, the vocabulary, shared memory", 0, added["engine"]
    names = {
        "template": "templates of frontend and engine",
        "worker": "grammar worker",
    }
    for one in _named(names, rest):
        yield one["name"], one["processes"], f"{one['pss_mib']:.0f}"
    yield "all, at rest", 3, added["all"]
    yield "all, after a compile in a helper", 4, added["after_helper"]


def _soak(raw: Raw) -> Iterator[Row]:
    names = {
        "frontend": "frontend",
        "worker": "grammar worker",
        "engine": "vLLM's engine and its worker",
    }
    columns = {
        "": "{name}",
        "MB in the first six minutes": "{memory_mb[start]:,.0f}",
        "in the last six": "{memory_mb[end]:,.0f}",
    }
    return _lines(_named(names, raw["results"]["soak"]["processes"]), columns)


def _attacks(raw: Raw) -> Iterator[Row]:
    names = {
        "compile-bombs": "specs whose compiles are expensive",
        "mask-bombs": "grammars whose masks do not end",
        "lexer-bombs": "lexers with many states",
        "big-bodies": "bodies of 10 MB",
        "many-schemas": "a flood of new schemas",
        "leavers": "clients that leave at once",
    }
    columns = {
        "attack": "{name}",
        "ordinary answers": "{answers}",
        "wrong": "{attacked[ends][invalid]}",
        "lost": "{attacked[guided_lost]}",
        "longest pause, ms: before": "{quiet[gaps_ms][max]:.0f}",
        "under it": "{attacked[gaps_ms][max]:.0f}",
    }
    found = []
    for one in _named(names, raw["results"]):
        ends = one["attacked"]["ends"]
        answers = ends["valid"] + ends["length"] + ends["invalid"]
        found.append({"answers": answers, **one})
    return _lines(found, columns)


_COUNTS = {
    "files": "files",
    "tests": "instances",
    "passing": "enforced exactly",
    "wrong_accepts": "wrong accepts",
    "wrong_refusals": "wrong refusals",
    "refused": "refused",
}


def _maskbench(raw: Raw) -> Iterator[Row]:
    yield ("", *_COUNTS.values())
    for run in raw["runs"]:
        yield (_LIBRARIES[run["engine"]], *(run[key] for key in _COUNTS))


_SUITE = {
    "schemas": "schemas",
    "valid_accepted": "valid accepted",
    "valid_refused": "valid refused",
    "invalid_refused": "invalid refused",
    "wrong_accepts": "wrong accepts",
    "refused": "refused",
    "refused_right": "of them rightly",
}


def _suite(raw: Raw) -> Iterator[Row]:
    yield ("", "draft", *_SUITE.values())
    for engine, name in _LIBRARIES.items():
        for draft in ("7", "2020-12"):
            one = _one(raw["suite"], engine=engine, draft=f"draft{draft}")
            yield (name, draft, *(one[key] for key in _SUITE))


def _refused_keywords(raw: Raw) -> Iterator[Row]:
    """What is refused though an instance is valid, in the newest draft."""
    keys = ("schemas", "valid_refused", "refused", "refused_right")
    yield ("file of the suite", *(_SUITE[key] for key in keys))
    newest = _all(raw["suite"], engine="auto")[-1]
    for one in newest["keywords"]:
        if one["refused"] > one["refused_right"] or one["valid_refused"]:
            yield (f"`{one['keyword']}`", *(one[key] for key in keys))


def _formats(raw: Raw) -> Iterator[Row]:
    keys = dict(list(_SUITE.items())[1:5])
    yield ("format", *keys.values())
    newest = _all(raw["formats"], engine="auto")[-1]
    for one in newest["keywords"]:
        yield (f"`{one['keyword']}`", *(one[key] for key in keys))


def _fuzz(raw: Raw) -> Iterator[Row]:
    keys = (
        "schemas",
        "refused",
        "valid instances",
        "invalid instances",
        "wrong accept",
        "dead end",
        "early stop",
        "crash",
        "wrong refusal",
    )
    yield keys
    yield tuple(raw["totals"][key] for key in keys)


def _drip(raw: Raw) -> Iterator[Row]:
    """`benchmarks.server.first`: other streams in its bursts."""
    names = {"plain": "eight plain guided ones", "slow": "eight slow"}
    columns = {
        "alone, just before: median, ms": ("others_gaps_ms_before", "p50"),
        "p99": ("others_gaps_ms_before", "p99"),
        "median, ms": ("others_gaps_ms", "p50"),
        "p99 ": ("others_gaps_ms", "p99"),
        "all eight had ended after, s": ("seconds",),
    }
    return _bursts(raw["runs"], "beside", names, columns)


TABLES = {
    # README.md and docs/performance.md
    "steps": Table("2026-12-01-vllm-8b-h200", _steps_in_short, _SHORT),
    "known-schemas": Table("2026-12-01-vllm-8b-h200", _steps, _STEPS),
    "job": Table(
        "2026-12-01-job-h200",
        _job,
        _PAIRS,
        more=("2026-11-30-job-b-h200", "2026-11-30-job-own-b-h200"),
    ),
    "gpus-and-models": Table(
        "2026-11-26-vllm-8b-tp2-b-h100",
        _steps,
        _STEPS,
        more=("2026-11-27-vllm-06b-h100",),
    ),
    # docs/figures.md
    "answers": Table(
        "2026-11-28-answers-h200",
        _answers,
        more=("2026-11-29-answers-job-second-h200",),
    ),
    "tools": Table("2026-11-29-answers-tools-h200", _answers),
    "small-answers": Table("2026-11-28-answers-smollm2-cpu", _answers),
    "forced-text": Table("2026-11-27-replay-matrix-h100", _replayed, _PAIRS),
    "first-tokens": Table("2026-11-30-first-b-cpu", _first, _RUNS),
    "generate": Table("2026-11-22-transformers-h200-b", _generate, _MEDIANS),
    "new-drafts": Table(
        "2026-12-01-replay-new-8b-h200",
        _replayed,
        _PAIRS,
        more=("2026-11-30-replay-new-h200",),
    ),
    "limits": Table("2026-12-01-answers-limits-h200", _answers),
    "near-end": Table(
        "2026-12-01-near-end-h200",
        _near_end,
        _MEDIANS,
        more=("2026-11-30-near-end-c-h200",),
    ),
    "closing": Table("2026-11-30-closing-b-cpu", _closing, _COUNTED),
    "attacks": Table("2026-11-23-attacks-cpu", _attacks),
    # docs/security.md
    "drip": Table("2026-11-30-drip-cpu", _drip, _RUNS),
    # docs/operations.md
    "at-rest": Table("2026-11-26-at-rest-cpu", _at_rest),
    "soak": Table("2026-11-23-soak-server-b-cpu", _soak),
    # docs/conformance.md
    "maskbench": Table("2026-11-30-conformance-maskbench", _maskbench, _COUNTED),
    "maskbench-pinned": Table(
        "2026-11-30-conformance-maskbench-b", _maskbench, _COUNTED
    ),
    "suite": Table("2026-11-30-conformance-suite", _suite, _COUNTED),
    "suite-refused": Table("2026-11-30-conformance-suite", _refused_keywords, _COUNTED),
    "formats": Table("2026-11-30-conformance-formats", _formats, _COUNTED),
    "fuzz": Table("2026-11-29-conformance-fuzz", _fuzz, _COUNTED),
}
"""By the name that stands at the table's place in a page."""
