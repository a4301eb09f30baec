"""Tasks: what a model is asked, the schema of the answer, and what a right answer is.

A line of a tasks file is a JSON object:

    messages    what the model is asked, as chat messages; or `prompt`, a text that is used as it is
    schema      the JSON Schema of the answer; or `tools`, functions as OpenAI's API has them
    judge       {"equals": VALUE}, {"items": [ITEM, ...]}, {"calls": [{NAME: {ARGUMENT: [ACCEPTED, ...]}}]},
                {"tool": NAME}, or {"valid": true}; `judges.py` says what each means
    id, max_tokens, many   optional; `many`: the answer is a list of calls
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.answers import bfcl
from benchmarks.answers.judges import JUDGES
from benchmarks.answers.models import cached
from benchmarks.samples import open_sample
from guided_plugin.cli.loading import InputError

LISTS = Path(__file__).with_name("lists.jsonl")
_SEED = 1
_CHOICE = 8
"""Tools that a task of the kind `tools` has."""
_LONGEST_SCHEMA = 6000
"""Characters of a schema that a model is asked to write a document for."""
_JSON_TYPES = {str: "string", int: "integer", float: "number"}


@dataclass(frozen=True, slots=True)
class Task:
    """One question, and what is known of its answer."""

    kind: str
    id: str
    schema: dict[str, Any]
    judge: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    many: bool = False
    max_tokens: int = 256


def load_tasks(kind: str, sources: dict[str, Path | None], count: int) -> list[Task]:
    """Return at most `count` tasks of a kind or a file, in an order that looks random
    and never changes."""
    make = KINDS.get(kind)
    found = read_tasks(Path(kind)) if make is None else make(sources)
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
        _task(path.stem, f"{path}:{number}", line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _task(kind: str, where: str, line: str) -> Task:
    try:
        known = json.loads(line)
        task = Task(
            kind,
            **{"id": where, **known, "schema": known.get("schema") or _answer(known)},
        )
    except (KeyError, TypeError, ValueError) as error:
        hint = "benchmarks/answers/tasks.py describes a line"
        raise InputError(f"is not a task: {error}", where=where, hint=hint) from None
    if len(task.judge) != 1 or next(iter(task.judge)) not in JUDGES:
        raise InputError(
            "needs one judge",
            where=f"{where}, judge",
            hint=f"one of {', '.join(JUDGES)}",
        )
    if not task.messages and task.prompt is None:
        raise InputError("asks nothing", where=where, hint="give messages or prompt")
    return task


def _answer(known: dict[str, Any]) -> dict[str, Any]:
    return call_schema(known["tools"], many=known.get("many", False))


def call_schema(tools: Sequence[dict[str, Any]], *, many: bool) -> dict[str, Any]:
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


def _bfcl(sources: dict[str, Path | None]) -> list[Task]:
    """Make a task of each function call of BFCL."""
    tasks = []
    for question in bfcl.questions(sources["bfcl"] or cached("bfcl")):
        many = len(question.calls) > 1
        tasks.append(
            Task(
                "bfcl",
                question.id,
                call_schema(question.tools, many=many),
                {"calls": question.calls},
                question.messages,
                tools=question.tools,
                many=many,
                max_tokens=512 if many else 256,
            )
        )
    return tasks


def _calls(sources: dict[str, Path | None]) -> list[Task]:
    """Make the tasks of BFCL as a server is asked them: with tools, answered in any
    number of calls."""
    return [
        replace(
            task,
            kind="calls",
            schema=call_schema(task.tools, many=True),
            many=False,
            max_tokens=512,
        )
        for task in _bfcl(sources)
    ]


def _tools(sources: dict[str, Path | None]) -> list[Task]:
    """Make tasks whose tool is one of several: those of other questions are added to a
    question's own."""
    known = [
        one
        for one in bfcl.questions(sources["bfcl"] or cached("bfcl"))
        if "simple_python" in one.id
    ]
    chosen = random.Random(_SEED)
    tasks = []
    for question in known:
        own = question.tools[0]
        others = [one.tools[0] for one in chosen.sample(known, 2 * _CHOICE)]
        by_name = {tool["function"]["name"]: tool for tool in [own, *others]}
        tools = list(by_name.values())[:_CHOICE]
        chosen.shuffle(tools)
        judge = {"tool": own["function"]["name"]}
        schema = call_schema(tools, many=False)
        tasks.append(
            Task("tools", question.id, schema, judge, question.messages, tools=tools)
        )
    return tasks


def _lists(sources: dict[str, Path | None]) -> list[Task]:
    """Make a task of each text of lists.jsonl: which items are in it?"""
    tasks = []
    for number, line in enumerate(LISTS.read_text().splitlines()):
        known = json.loads(line)
        first = known["items"][0]
        fields = {
            name: {"type": _JSON_TYPES[type(value)]} for name, value in first.items()
        }
        item: dict[str, Any] = {
            "type": "object",
            "properties": fields,
            "required": list(fields),
        }
        with_fields = f", each an object with the keys {' and '.join(fields)}"
        if list(fields) == ["name"]:
            item = fields["name"]
            with_fields = ", each a text"
        key = known["key"]
        asked = f'Answer with JSON only: an object with the key "{key}", a list of {known["what"]}{with_fields}.'
        tasks.append(
            Task(
                "lists",
                f"lists_{number}",
                {
                    "type": "object",
                    "properties": {key: {"type": "array", "items": item}},
                    "required": [key],
                },
                {"items": known["items"]},
                [{"role": "user", "content": f"{known['text']}\n\n{asked}"}],
                max_tokens=384,
            )
        )
    return tasks


def _documents(sources: dict[str, Path | None]) -> list[Task]:
    """Make a task of each schema of a sample: write a document that is valid under
    it."""
    sample = sources["sample"]
    if sample is None:
        raise InputError(
            "documents need a sample of schemas",
            where="--sample",
            hint="a folder or tar archive",
        )
    asked = (
        "Write one JSON document, an example with realistic values, that is valid under this JSON Schema. "
        "Answer with the document only.\n\n"
    )
    tasks = []
    with open_sample(sample) as files:
        for name, path in files.items():
            schema = json.loads(path.read_text())["schema"]
            text = json.dumps(schema)
            if isinstance(schema, dict) and len(text) <= _LONGEST_SCHEMA:
                messages = [{"role": "user", "content": asked + text}]
                tasks.append(
                    Task(
                        "documents",
                        name,
                        schema,
                        {"valid": True},
                        messages,
                        max_tokens=512,
                    )
                )
    return tasks


KINDS: dict[str, Callable[[dict[str, Path | None]], list[Task]]] = {
    "bfcl": _bfcl,
    "calls": _calls,
    "lists": _lists,
    "documents": _documents,
    "tools": _tools,
}
"""The tasks that come with the benchmark."""
