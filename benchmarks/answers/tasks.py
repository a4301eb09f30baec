"""Tasks: what a model is asked, the schema of the answer, and what a right answer is.

A folder or archive of MaskBench is one task for each schema: the model sees the schema,
and any valid document is right. A line of a tasks file is a JSON object:

    messages    what the model is asked, as chat messages; or `prompt`, a text that is used as it is
    schema      the JSON Schema of the answer; or `tools`, functions as OpenAI's API has them
    judge       {"equals": VALUE}, {"items": [ITEM, ...]}, {"calls": [{NAME: {ARGUMENT: [ACCEPTED, ...]}}]},
                or {"valid": true}; `judges.py` says what each means
    id, max_tokens, many   optional; `many`: the answer is a list of calls
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.answers import bfcl
from benchmarks.answers.judges import JUDGES
from benchmarks.answers.models import cached
from benchmarks.harness import Json
from benchmarks.samples import served_schemas
from guided_plugin.cli.loading import InputError

LISTS = Path(__file__).with_name("lists.jsonl")
"""Texts, and the items that are in them."""
_SEED = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One question, and what is known of its answer."""

    kind: str
    id: str
    schema: Json
    judge: Json
    messages: list[Json] = field(default_factory=list)
    prompt: str | None = None
    tools: list[Json] = field(default_factory=list)
    many: bool = False
    max_tokens: int = 256


def load_tasks(kind: str, folder: Path | None, count: int) -> list[Task]:
    """Return at most `count` tasks of a kind or a file, in an order that looks random
    and never changes. `folder` has BFCL's data, if not the cache."""
    make = KINDS.get(kind)
    if make is not None:
        found = make(folder)
    elif Path(kind).suffix == ".jsonl":
        found = read_tasks(Path(kind))
    else:
        found = _documents(Path(kind), count or sys.maxsize)
    random.Random(_SEED).shuffle(found)
    return found[:count] if count else found


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks of a file. Raises InputError for a line that is not a task."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        hint = f"--tasks takes {', '.join(KINDS)}, and files of JSON lines"
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint=hint
        ) from None
    return [
        _task(
            path.stem,
            f"{path}:{number}",
            line,
        )
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _task(kind: str, where: str, line: str) -> Task:
    try:
        known = json.loads(line)
        task = Task(
            kind,
            **{
                "id": where,
                **known,
                "schema": known.get("schema")
                or call_schema(known["tools"], many=known.get("many", False)),
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        hint = "benchmarks/answers/tasks.py describes a line"
        raise InputError(
            f"is not a task: {error}",
            where=where,
            hint=hint,
        ) from None
    if len(task.judge) != 1 or next(iter(task.judge)) not in JUDGES:
        raise InputError(
            "needs one judge",
            where=f"{where}, judge",
            hint=f"one of {', '.join(JUDGES)}",
        )
    if not task.messages and task.prompt is None:
        raise InputError("asks nothing", where=where, hint="give messages or prompt")
    return task


def _documents(sample: Path, count: int) -> list[Task]:
    """Make a task of each schema of a sample that this package serves."""
    asked = (
        "Write one JSON document that follows this JSON Schema. Answer with JSON only."
    )
    tasks = []
    for number, schema in enumerate(served_schemas(sample, count)):
        content = f"{asked}\n\n{json.dumps(schema, ensure_ascii=False)}"
        messages = [{"role": "user", "content": content}]
        task = Task(
            "documents",
            f"{number}",
            schema,
            {"valid": True},
            messages,
            max_tokens=700,
        )
        tasks.append(task)
    return tasks


def call_schema(tools: Sequence[Json], *, many: bool) -> Json:
    """Return the schema of a call of one of these tools, or of a list of calls."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"]["parameters"],
            },
            "required": ["name", "arguments"],
        }
        for tool in tools
    ]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "items": call, "minItems": 1} if many else call


def _bfcl(folder: Path | None) -> list[Task]:
    """Make a task of each function call of BFCL."""
    tasks = []
    for known in bfcl.questions(folder or cached("bfcl")):
        calls = known.pop("calls")
        many = len(calls) > 1
        task = Task(
            "bfcl",
            schema=call_schema(known["tools"], many=many),
            judge={"calls": calls},
            many=many,
            max_tokens=512 if many else 256,
            **known,
        )
        tasks.append(task)
    return tasks


KINDS: dict[str, Callable[[Path | None], list[Task]]] = {
    "bfcl": _bfcl,
    "lists": lambda folder: read_tasks(LISTS),
}
"""The tasks that come with the benchmark."""
