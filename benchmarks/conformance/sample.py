"""Which schemas of MaskBench get the right answers from an engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from stopping import Walker

from benchmarks.conformance.engines import Engine
from benchmarks.harness import Json
from benchmarks.samples import open_sample, text_of
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary


def coverage(name: str, vocabulary: Vocabulary, source: Path, every: int) -> Json:
    """Counts of files by what became of them, and those that are not right by their
    names."""
    counts: Counter[str] = Counter()
    named = []
    engine = Engine(name, vocabulary)
    walker = Walker(engine)
    with open_sample(source) as files:
        for file, path in list(files.items())[::every]:
            document = json.loads(path.read_bytes())
            found, said = _of_file(engine, walker, document)
            counts.update({"files": 1, "tests": len(document["tests"])})
            counts.update(found or {"passing"})
            if found:
                named.append({"name": file, "found": sorted(found), "error": said})
    return {"engine": name, **{one: counts[one] for one in COUNTED}, "named": named}


COUNTED = (
    "files",
    "tests",
    "passing",
    "wrong_accepts",
    "wrong_refusals",
    "early_stops",
    "refused",
    "died",
)


def _of_file(engine: Engine, walker: Walker, file: Json) -> tuple[set[str], str]:
    """What is wrong with a file, and what its errors say."""
    try:
        grammar = engine.compile(file["schema"])
    except GuidedError as error:
        return {"refused"}, str(error)
    found = set()
    said = []
    for test in file["tests"]:
        walked = walker.walk(grammar, text_of(test["data"]))
        if walked.faults or walked.limited:
            found.add("died")
        if walked.early or walked.leaks:
            found.add("early_stops")
        if walked.accepted != test["valid"]:
            found.add("wrong_accepts" if walked.accepted else "wrong_refusals")
        said += [*walked.faults, *walked.early, *walked.leaks]
    return found, "; ".join(said)
