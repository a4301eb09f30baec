"""The findings of `check`, as SARIF 2.1.0 too, which code hosts show beside the lines
of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from guided_plugin import __version__
from guided_plugin.cli.loading import GRAMMARS, Place, name_of
from guided_plugin.errors import GuidedError, shown
from guided_plugin.spec.references import pointer_steps

_Steps = tuple[str | int, ...]


class Finding(NamedTuple):
    """Something that is wrong with a spec."""

    rule: str
    place: Place
    error: GuidedError
    """With the place inside the spec."""
    code: int = 1
    """The exit code that it leads to."""

    @property
    def level(self) -> str:
        """Its severity, as SARIF has it."""
        return "error" if self.code else "warning"

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        where = self.error.where
        inside = where.startswith("#")
        return {
            **self.error.to_dict(),
            "type": self.rule,
            "level": self.level,
            "file": name_of(self.place.file),
            "tool": self.place.tool,
            "pointer": self.place.at + where[1:] if inside else "",
            "keyword": where.rpartition("/")[2] if inside else "",
        }


def sarif_of(findings: Iterable[Finding]) -> dict[str, Any]:
    """The log of one run."""
    results = [_result(finding) for finding in findings]
    rules = [{"id": rule} for rule in sorted({one["ruleId"] for one in results})]
    driver = {"name": "guided-plugin", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(finding: Finding) -> dict[str, Any]:
    place, error = finding.place, finding.error
    physical: dict[str, Any] = {
        "artifactLocation": {"uri": quote(place.file.as_posix())},
        "region": _region(place.file, place.at, error.where),
    }
    at: dict[str, Any] = {"physicalLocation": physical}
    if error.where.startswith("#"):
        at["logicalLocations"] = [{"fullyQualifiedName": error.where}]
    tool = f"tool {shown(place.tool)}: " if place.tool else ""
    return {
        "ruleId": finding.rule,
        "level": finding.level,
        "message": {"text": tool + error.reason},
        "locations": [at],
    }


def _region(file: Path, at: str, where: str) -> dict[str, int]:
    """The line and the column of a place in a spec file; its first line where they are
    not known."""
    named = re.search(r"line (\d+), column (\d+)", where)
    if named and (where.startswith("line") or file.suffix.lower() in GRAMMARS):
        return {"startLine": int(named[1]), "startColumn": int(named[2])}
    path: list[str | int] = []
    with suppress(OSError, ValueError, RecursionError, IndexError):
        text = file.read_text(encoding="utf-8-sig")
        document = json.loads(text)
        with suppress(LookupError):  # of a schema as rewritten: as far as it goes
            path += (step for step, _ in pointer_steps(document, at + where[1:]))
        while isinstance(path[-1], int):
            path.pop()
        same = [one for one in _members(document) if one[-1] == path[-1]]
        spelt = re.escape(json.dumps(path[-1], ensure_ascii=False)) + r"\s*:"
        starts = [match.start() for match in re.finditer(spelt, text)]
        start = dict(zip(same, starts, strict=True))[tuple(path)]
        return {
            "startLine": text.count("\n", 0, start) + 1,
            "startColumn": start - text.rfind("\n", 0, start),
        }
    return {"startLine": 1}


def _members(node: Any, path: _Steps = ()) -> Iterator[_Steps]:
    """The paths of all that is in a JSON document, in its order."""
    inside: Iterable[tuple[str | int, Any]] = ()
    if isinstance(node, dict):
        inside = node.items()
    elif isinstance(node, list):
        inside = enumerate(node)
    for key, value in inside:
        yield (*path, key)
        yield from _members(value, (*path, key))
