"""Walk the newcomer's tasks of CONTRIBUTING.md, and print a table: task, seconds, ok,
what was said.

    .venv-vllm/bin/python scripts/newcomer.py --clients .venv-clients/bin/python

The package is installed as pip installs it into a fresh virtual environment, which sees
the libraries of the interpreter that runs this (vLLM, torch, openai). Each task runs
what its line in CONTRIBUTING.md says. One that fails prints what a newcomer would see.
Answers are judged by `jsonschema` and `re`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.server.launch import free_port, running  # noqa: E402

EXAMPLES = ROOT / "examples"
SECONDS = 600  # for a command
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 18, "maximum": 90},
        "role": {"enum": ["engineer", "teacher", "nurse"]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Failed(Exception):
    """What a newcomer would see."""


class Walk:
    """A newcomer's machine: a folder, a fresh virtual environment, a server."""

    def __init__(self, folder: Path, clients: str) -> None:
        self.folder = folder
        self.clients = clients
        self.base_url = ""
        self.python = str(folder / "venv" / "bin" / "python")
        self.stack = contextlib.ExitStack()
        # What is written for vLLM on a CPU: its threads spin where processors are
        # shared.
        small = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self.environment = {**small, "COLUMNS": "200", **os.environ}
        for name in ("PYTHONPATH", "GUIDED_PLUGIN"):
            self.environment.pop(name, None)

    def run(self, *command: str, code: int = 0, stdin: str = "", **more: str) -> str:
        """What a command writes to stdout. Raises Failed, with stderr too, for another
        `code`."""
        done = subprocess.run(
            command,
            input=stdin,
            env={**self.environment, **more},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if done.returncode != code:
            seen = done.stdout[-4000:] + done.stderr[-4000:]
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{seen}")
        return done.stdout

    def plugin(self, *arguments: str, **more: Any) -> str:
        """What `guided-plugin` prints, as it was installed."""
        program = str(Path(self.python).with_name("guided-plugin"))
        return self.run(program, *arguments, **more)

    def address(self) -> str:
        """Of the server."""
        if not self.base_url:
            raise Failed("there is no server: the task `serve` failed")
        return self.base_url

    def pip_install(self, source: Path, *names: str) -> None:
        """Install a package from a copy of its sources: nothing is left in the
        checkout."""
        copy = self.folder / f"sources-{source.name}"
        copy.mkdir()
        for name in names:
            if (source / name).is_dir():
                shutil.copytree(source / name, copy / name)
            else:
                shutil.copy(source / name, copy)
        words = f"-m pip --python {self.python} install --quiet --no-deps".split()
        self.run(sys.executable, *words, "--ignore-installed", str(copy))


def matched(pattern: str, text: str) -> str:
    """What matches in a text; Failed where nothing does."""
    found = re.search(pattern, text, re.M)
    if found is None:
        raise Failed(text)
    return found[0].strip()


def last_person(text: str, count: int) -> str:
    """The last record that an example printed; so many are right, and none is wrong."""
    found = re.findall(r'^(?!free).*?(\{"name".*\})$', text, re.M)
    try:
        for record in found:
            jsonschema.validate(json.loads(record), PERSON)
    except (ValueError, jsonschema.ValidationError) as error:
        raise Failed(f"{error}\n{text}") from None
    if len(found) < count:
        raise Failed(f"{len(found)} records instead of {count}\n{text}")
    return str(found[-1])


def install(walk: Walk) -> str:
    """A fresh virtual environment; the demo shows that it works."""
    venv = walk.folder / "venv"
    walk.run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    libraries = sysconfig.get_path("purelib", vars={"base": str(venv)})
    own = sysconfig.get_path("purelib")
    Path(libraries, "libraries.pth").write_text(own + "\n")
    walk.pip_install(ROOT, "pyproject.toml", "README.md", "LICENSE", "guided_plugin")
    shown = walk.plugin("demo", "--json")
    if not all(entry["guided"]["valid"] for entry in json.loads(shown)["demos"]):
        raise Failed(shown)
    return walk.plugin("--version")


def serve(walk: Walk) -> str:
    """Until it says that it is ready."""
    port = free_port()
    log = walk.folder / "server.log"
    command = [walk.python, str(EXAMPLES / "serve.py"), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    walk.stack.enter_context(running(command, walk.environment, log, url))
    walk.base_url = f"{url}/v1"
    time.sleep(2.0)  # it asks twice a second whether it is ready
    return matched("^ready: .*$", log.read_text())


def example(walk: Walk, name: str, people: int = 0, said: tuple[str, ...] = ()) -> str:
    """What an example prints; a client asks the server."""
    client = name.endswith("_client")
    given = ("--base-url", walk.address()) if client else ()
    python = walk.clients if client else walk.python
    told = walk.run(python, str(EXAMPLES / f"{name}.py"), *given)
    found = [matched(pattern, told) for pattern in said]
    return last_person(told, people) if people else found[-1]


def refused_and_mended(walk: Walk) -> str:
    """A schema with two slips, and nothing but the server's messages to mend it by."""
    url = walk.address()
    from openai import BadRequestError, OpenAI

    properties: Any = {
        "name": {"type": "strng", "maxLength": 20},
        "age": {"type": "int", "maximum": 90},
    }
    schema = {"type": "object", "properties": properties, "required": ["name", "age"]}
    form: Any = {"name": "person", "schema": schema}
    ask = OpenAI(base_url=url, api_key="-").chat.completions.create
    messages = []
    while len(messages) < 3:
        try:
            answer = ask(
                model="demo",
                messages=[{"role": "user", "content": "Person as JSON:"}],
                max_tokens=200,
                temperature=0,
                response_format={"type": "json_schema", "json_schema": form},
            )
        except BadRequestError as error:
            messages.append(error.message)
            told = matched(
                r"#/properties/\w+/type: .*\(did you mean '\w+'", messages[-1]
            )
            _, _, name, *_, word, _ = re.split(r"[/']", told)
            properties[name]["type"] = word
        else:
            text = answer.choices[0].message.content or ""
            jsonschema.validate(json.loads(text), schema)
            return messages[0]
    raise Failed("\n".join(messages))


def metrics(walk: Walk) -> str:
    """What the tasks before did. The last one that asks the server."""
    url = walk.address().removesuffix("/v1") + "/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    walk.stack.close()
    admitted = r'^guided_plugin_requests_total\{.*outcome="admitted".*\} [1-9].*$'
    return matched(admitted, text)


def check(walk: Walk) -> str:
    """A right instance and a wrong one."""
    (walk.folder / "schema.json").write_text(json.dumps(PERSON))
    (walk.folder / "good.json").write_text('{"name":"Ana","age":30,"role":"nurse"}')
    (walk.folder / "bad.json").write_text('{"name":"Ana","age":300}')
    good = ["check", "schema.json", "--instance", "good.json"]
    walk.plugin(*good)
    told = walk.plugin(*good, "--instance", "bad.json", code=1)
    return matched(r"refused at character \d+: [^│\n]*", told)


def explain(walk: Walk) -> str:
    """An output that ran into its limit of tokens."""
    (walk.folder / "schema.json").write_text(
        '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
    )
    text = '{"name":"Ana","age":' + "6" * 12
    told = walk.plugin("explain", "schema.json", "--text", text)
    return matched(r"^bounds +(.*max_digits.*)$", told)


def doctor(walk: Walk) -> str:
    """An option with a typing error, then without."""

    def problems(option: str, code: int) -> str:
        # of the options alone: what else is wrong with this machine is another matter
        given = f'{{"{option}": true}}'
        told = walk.plugin("doctor", "--json", code=code, GUIDED_PLUGIN=given)
        options = json.loads(told)["sections"]["options"]
        return "; ".join(one["what"] for one in options if one["status"] == "problem")

    told = matched("did you mean 'take_over'", problems("take_ovr", 1))
    left = problems("take_over", 0)
    if left:
        raise Failed(left)
    return told


def custom_backend(walk: Walk) -> str:
    """Installed next to the package, and found by its entry point."""
    source = EXAMPLES / "custom_backend"
    walk.pip_install(source, *(path.name for path in source.iterdir()))
    spec = '{"choice": ["yes", "no"], "backend": "choices"}'
    return matched(".*compiles with choices.*", walk.plugin("check", "-", stdin=spec))


TASKS: dict[str, Callable[[Walk], str]] = {
    "install": install,
    "serve": serve,
    "openai": partial(
        example,
        name="vllm_server_client",
        people=1,
        said=("^choice: (yes|no)$", "^regex: ORD-[0-9]{5}$"),
    ),
    "instructor": partial(example, name="instructor_client", people=2),
    "langchain": partial(example, name="langchain_client", people=2),
    "pydantic-ai": partial(example, name="pydantic_ai_client", people=2),
    "refused schema": refused_and_mended,
    "metrics": metrics,
    "vLLM offline": partial(
        example,
        name="vllm_offline",
        people=1,
        said=("^guided: (yes|no)$", "^guided: ORD-[0-9]{5}$"),
    ),
    "transformers": partial(
        example,
        name="transformers_generate",
        said=(r'^guided: \{"name":.*"age":.*\}$',),
    ),
    "own loop": partial(example, name="own_loop", people=1),
    "check": check,
    "explain": explain,
    "doctor": doctor,
    "custom backend": custom_backend,
}
"""By the names of CONTRIBUTING.md, in its order."""


def tried(walk: Walk, name: str) -> bool:
    """Do a task, and tell how long it took, whether it worked and what was said."""
    start = time.perf_counter()
    failed = ""
    try:
        said = TASKS[name](walk)
    # any of a task's own: told like the others, so that the table is whole
    except Exception as error:
        failed = said = f"{type(error).__name__}: {error}"
    short = textwrap.shorten(said, 120, placeholder="...")
    seconds = time.perf_counter() - start
    print(
        f"{name:16} {seconds:7.1f}  {'NO ' if failed else 'ok '}  {short}", flush=True
    )
    if failed:
        print(f"--- {name} failed; what a newcomer sees:\n{failed}\n", flush=True)
    return not failed


def main() -> int:
    """Exit code 1 if a task failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--clients", default=sys.executable, help="interpreter that has the clients")
    add("--only", nargs="*", choices=list(TASKS), help="these tasks, and `install`")
    given = parser.parse_args()
    only = {"install", *(given.only or TASKS)}
    print(f"{'task':16} {'seconds':>7}  ok   what was said", flush=True)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        # a link to another interpreter stays one
        walk = Walk(Path(folder), os.path.abspath(given.clients))
        with walk.stack:
            worked = [tried(walk, name) for name in TASKS if name in only]
    return int(not all(worked))


if __name__ == "__main__":
    sys.exit(main())
