"""Scores a compiler with the official JSON Schema Test Suite: what its grammars accept,
and where they stop.

The suite is no part of this project; its archive is read where it lies. Scored are the
core files of each draft, without `optional/` and without `format.json` (formats are
annotations there).
"""

from __future__ import annotations

import functools
import json
import tarfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

from stopping import Walker

from benchmarks.samples import TextTokens
from guided_plugin.errors import GuidedError
from guided_plugin.spec import OutputSpec

ARCHIVE = Path(__file__).parents[3] / "shared" / "jsonschema-suite" / "suite.tar.xz"
DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
RANDOM_WAYS = 3
"""Tokenizations at random of each instance, next to single bytes and the longest
tokens."""
_SCHEMA_OF = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


@dataclass(frozen=True)
class Group:
    """A schema with instances."""

    name: str
    schema: Any
    tests: tuple[tuple[str, bool], ...]
    """Each instance as compact JSON, and whether it is valid."""

    @property
    def keyword(self):
        """The file that it is in: most are named after a keyword."""
        return self.name.partition(":")[0]


def _note(found, instance, valid, walks):
    """Note an instance, walked in different tokenizations."""
    for walk in walks:
        for name, faults in (
            ("early stops", walk.early),
            ("leaks", walk.leaks),
            ("faults", walk.faults),
            ("dead ends", [walk.text] * walk.stuck),
        ):
            found[name] += [f"{instance}: {fault}" for fault in faults]
    accepted = {walk.accepted for walk in walks}
    if len(accepted) > 1:
        found["disagreements"].append(instance)
    if valid and False in accepted:
        found["valid refused"].append(instance)
    if True in accepted and not valid:
        found["wrong accepts"].append(instance)


@functools.cache
def _files(source):
    """The JSON files of the suite's tests: of a folder or of an archive."""
    if source.is_dir():
        found = sorted(source.rglob("tests/**/*.json"))
        return {
            path.relative_to(source).as_posix(): json.loads(path.read_bytes())
            for path in found
        }
    with tarfile.open(source) as archive:
        return {
            member.name: json.load(archive.extractfile(member))
            for member in archive
            if member.isfile() and member.name.endswith(".json")
        }


def groups(draft, source=ARCHIVE, folder=""):
    """The core schemas of a draft, or those of a folder of it; those that name no draft
    are given theirs."""
    wanted = ("tests", draft, *PurePosixPath(folder).parts)
    for name, content in sorted(_files(source).items()):
        path = PurePosixPath(name)
        if path.parent.parts[-len(wanted) :] != wanted or path.name == "format.json":
            continue
        for group in content:
            schema = group["schema"]
            if isinstance(schema, dict) and draft in _SCHEMA_OF:
                schema = {"$schema": _SCHEMA_OF[draft], **schema}
            tests = tuple(
                (
                    json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")),
                    test["valid"],
                )
                for test in group["tests"]
            )
            yield Group(f"{path.stem}: {group['description']}", schema, tests)


def score(draft, compiler, *, every=1):
    """Walk the instances of every n-th schema of a draft, each in several
    tokenizations. What is found, by name: schemas that compiled, those that were
    refused, instances that are treated wrongly."""
    found = defaultdict(list)
    walker = Walker(compiler)
    tokens = TextTokens(compiler.vocabulary)
    for group in list(groups(draft))[::every]:
        try:
            grammar = compiler.compile(
                OutputSpec.json_schema(group.schema, strict=False)
            )
        except GuidedError as error:
            found["refused"].append(f"{group.name}: {error}")
            continue
        found["compiled"].append(group.name)
        ways = [
            tokens.all_ways(text, map(Random, range(RANDOM_WAYS)))
            for text, _ in group.tests
        ]
        walks = iter(walker.walk_all(grammar, [way for some in ways for way in some]))
        for (text, valid), some in zip(group.tests, ways, strict=True):
            _note(
                found,
                f"{group.name}: {text[:80]} ({grammar.backend})",
                valid,
                [next(walks) for _ in some],
            )
    return found
