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
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema

ROOT = Path(__file__).resolve().parents[1]
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

    def __init__(self, folder: Path, clients: str, base_url: str) -> None:
        self.folder = folder
        self.clients = clients
        self.base_url = base_url
        self.python = str(folder / "venv" / "bin" / "python")
        self.stack = contextlib.ExitStack()
        # What is written for vLLM on a CPU: its threads spin where processors are
        # shared.
        small = {
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "COLUMNS": "200",
        }
        self.environment = {**small, **os.environ}
        for name in ("PYTHONPATH", "GUIDED_PLUGIN"):
            self.environment.pop(name, None)

    def run(
        self, *command: str, code: int | None = 0, stdin: str = "", **more: str
    ) -> str:
        """What a command writes to stdout. Raises Failed, with stderr too, for another
        `code`."""
        try:
            done = subprocess.run(
                command,
                input=stdin,
                env={**self.environment, **more},
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(
                f"{' '.join(command)}: not done after {SECONDS} s\n{error.output!r}"
            ) from None
        if code is not None and done.returncode != code:
            seen = done.stdout[-4000:] + done.stderr[-4000:]
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{seen}")
        return done.stdout

    def plugin(
        self, *arguments: str, code: int | None = 0, stdin: str = "", **more: str
    ) -> str:
        """What `guided-plugin` prints, as it was installed."""
        program = str(Path(self.python).with_name("guided-plugin"))
        return self.run(program, *arguments, code=code, stdin=stdin, **more)

    def example(self, name: str, *arguments: str, python: str = "") -> str:
        """What an example prints."""
        return self.run(python or self.python, str(EXAMPLES / f"{name}.py"), *arguments)

    def client(self, name: str, python: str = "") -> str:
        """What an example that is a client prints."""
        return self.example(name, "--base-url", self.address(), python=python)

    def address(self) -> str:
        """Of the server."""
        if not self.base_url:
            raise Failed("there is no server: the task `serve` failed")
        return self.base_url

    def pip_install(self, source: Path) -> None:
        """Install a package from a copy of its sources: nothing is left in the
        checkout."""
        options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install"]
        self.run(*pip, *options, "--ignore-installed", str(source))


def install(walk: Walk) -> str:
    """A fresh virtual environment; the demo shows that it works."""
    walk.run(sys.executable, "-m", "venv", "--without-pip", str(walk.folder / "venv"))
    libraries = (
        Path(sysconfig.get_path("purelib", vars={"base": str(walk.folder / "venv")}))
        / "libraries.pth"
    )
    libraries.write_text(sysconfig.get_path("purelib") + "\n")
    source = walk.folder / "guided_plugin_sources"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "guided_plugin", source / "guided_plugin", ignore=hidden)
    walk.pip_install(source)
    shown = json.loads(walk.plugin("demo", "--json"))
    if not all(entry["guided"]["valid"] for entry in shown["demos"]):
        raise Failed(json.dumps(shown, indent=1))
    return walk.plugin("--version")


def serve(walk: Walk) -> str:
    """Until it says that it is ready."""
    if walk.base_url:
        return f"a server that runs: {walk.base_url}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    log = walk.folder / "server.log"
    command = [walk.python, str(EXAMPLES / "serve.py"), "--port", port]
    with log.open("w") as out:
        server = subprocess.Popen(
            command, env=walk.environment, cwd=walk.folder, stdout=out, stderr=out
        )
    walk.stack.callback(_end, server)
    end = time.monotonic() + 900
    while "ready: " not in log.read_text():
        if server.poll() is not None or time.monotonic() > end:
            raise Failed(f"the server did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.5)
    walk.base_url = f"http://127.0.0.1:{port}/v1"
    return f"ready: {walk.base_url}"


def first_openai(walk: Walk) -> str:
    """A model, a regex, a choice."""
    told = walk.client("vllm_server_client")
    if not re.search(r"^regex: ORD-[0-9]{5}$", told, re.M) or not re.search(
        r"^choice: (yes|no)$", told, re.M
    ):
        raise Failed(told)
    return people(told, 1)


def first_instructor(walk: Walk) -> str:
    """Both modes."""
    return people(walk.client("instructor_client", walk.clients), 2)


def first_langchain(walk: Walk) -> str:
    """Structured output and a tool."""
    return people(walk.client("langchain_client", walk.clients), 2)


def first_pydantic_ai(walk: Walk) -> str:
    """Both kinds of output."""
    return people(walk.client("pydantic_ai_client", walk.clients), 2)


def refused_and_mended(walk: Walk) -> str:
    """A schema with two slips, and nothing but the server's messages to mend it by."""
    schema: Any = {
        "type": "object",
        "properties": {
            "name": {"type": "strng", "maxLength": 20},
            "age": {"type": "int", "maximum": 90},
        },
        "required": ["name", "age"],
    }
    messages = []
    while True:
        form = {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": schema},
        }
        status, answer = _chat(walk.address(), response_format=form)
        if status == 200:
            break
        message = answer["error"]["message"]
        found = re.search(r"#(/[^:]*): .*\(did you mean '([^']*)'\?\)", message)
        if status != 400 or found is None or message in messages:
            raise Failed(
                f"status {status}, and no way to mend the schema by it: {message}"
            )
        messages.append(message)
        *path, last = found[1].strip("/").split("/")
        part = schema
        for name in path:
            part = part[name]
        part[last] = found[2]
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), schema)
    return messages[0]


def metrics(walk: Walk) -> str:
    """What the tasks before did."""
    with urllib.request.urlopen(
        walk.address().removesuffix("/v1") + "/metrics", timeout=60
    ) as answer:
        text = answer.read().decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("guided_plugin_requests_total{")
    ]
    if not any(
        'outcome="admitted"' in line and not line.endswith(" 0.0") for line in lines
    ):
        raise Failed(
            "\n".join(line for line in text.splitlines() if "guided" in line)
            or "no guided metrics"
        )
    return lines[0]


def custom_backend(walk: Walk) -> str:
    """Installed next to the package, and found by its entry point."""
    source = walk.folder / "custom_backend"
    shutil.copytree(
        EXAMPLES / "custom_backend",
        source,
        ignore=shutil.ignore_patterns("build", "*.egg-info"),
    )
    walk.pip_install(source)
    told = walk.plugin(
        "check", "-", stdin='{"choice": ["yes", "no"], "backend": "choices"}'
    )
    if "compiles with choices" not in told:
        raise Failed(told)
    model = walk.run(
        walk.python, "-c", "from guided_plugin.demo import MODEL_DIR; print(MODEL_DIR)"
    ).strip()
    asked = (
        "generate",
        "--model",
        model,
        "--prompt",
        "Yes or no? ",
        "--choice",
        "yes,no",
        "--json",
    )
    made = walk.plugin(*asked, GUIDED_PLUGIN='{"backend": "choices"}')
    if json.loads(made)["outputs"][0]["text"] not in ("yes", "no"):
        raise Failed(made)
    return told.splitlines()[1]


def doctor(walk: Walk) -> str:
    """An option with a typing error, then without."""

    def problems(option: str, code: int | None) -> list[dict[str, str]]:
        """Of the options alone: what else is wrong with this machine is another
        matter."""
        told = json.loads(
            walk.plugin(
                "doctor", "--json", code=code, GUIDED_PLUGIN=f'{{"{option}": true}}'
            )
        )
        return [
            found
            for found in told["sections"]["options"]
            if found["status"] == "problem"
        ]

    broken = problems("take_ovr", 1)
    if (
        len(broken) != 1
        or "did you mean 'take_over'?" not in broken[0]["what"]
        or not broken[0]["remedy"]
    ):
        raise Failed(json.dumps(broken, indent=1))
    left = problems("take_over", None)
    if left:
        raise Failed(json.dumps(left, indent=1))
    return f"{broken[0]['what']} -> {broken[0]['remedy']}"


def explain(walk: Walk) -> str:
    """An output that ran into its limit of tokens."""
    stuck = '{"name":"Ana","age":' + "6" * 12
    schema: Any = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    }
    told = walk.plugin("explain", "-", "--text", stuck, stdin=json.dumps(schema))
    note = re.search(r"^note +(.*'maximum'.*)$", told, re.M)
    if note is None:
        raise Failed(told)
    schema["properties"]["age"] |= {"minimum": 0, "maximum": 150}
    walk.plugin("explain", "-", "--text", stuck, stdin=json.dumps(schema), code=1)
    return note[1]


def check(walk: Walk) -> str:
    """A right instance and a wrong one."""
    (walk.folder / "schema.json").write_text(json.dumps(PERSON))
    (walk.folder / "good.json").write_text('{"name":"Ana","age":30,"role":"nurse"}')
    (walk.folder / "bad.json").write_text('{"name":"Ana","age":300}')
    walk.plugin("check", "schema.json", "--instance", "good.json")
    told = walk.plugin(
        "check",
        "schema.json",
        "--instance",
        "good.json",
        "--instance",
        "bad.json",
        code=1,
    )
    where = re.search(r"refused at character \d+: [^│\n]*", told)
    if where is None:
        raise Failed(told)
    return where[0].strip()


def transformers(walk: Walk) -> str:
    """`generate`, objects and a pipeline."""
    told = walk.example("transformers_generate")
    guided = json.loads(re.findall(r"^guided: (.*)$", told, re.M)[0])
    jsonschema.validate(
        guided, {"required": ["name", "age"], "properties": {"age": {"maximum": 150}}}
    )
    return json.dumps(guided)


def own_loop(walk: Walk) -> str:
    """Five calls a step."""
    return people(walk.example("own_loop"), 1)


def vllm_offline(walk: Walk) -> str:
    """Without a server."""
    told = walk.example("vllm_offline")
    if not re.search(r"^guided: ORD-[0-9]{5}$", told, re.M) or not re.search(
        r"^guided: (yes|no)$", told, re.M
    ):
        raise Failed(told)
    return people(told, 1)


TASKS: dict[str, Callable[[Walk], str]] = {
    "install": install,
    "serve": serve,
    "openai": first_openai,
    "instructor": first_instructor,
    "langchain": first_langchain,
    "pydantic-ai": first_pydantic_ai,
    "refused schema": refused_and_mended,
    "metrics": metrics,
    "vLLM offline": vllm_offline,
    "transformers": transformers,
    "own loop": own_loop,
    "check": check,
    "explain": explain,
    "doctor": doctor,
    "custom backend": custom_backend,
}
"""By the names of CONTRIBUTING.md, in its order."""


def people(text: str, count: int) -> str:
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


def _chat(base_url: str, **more: Any) -> tuple[int, Any]:
    """A status, and the document with it."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Person as JSON:"}],
        "max_tokens": 200,
    }
    body |= {"temperature": 0, **more}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def walk_tasks(
    walk: Walk, names: Sequence[str]
) -> Iterator[tuple[str, float, bool, str]]:
    """Name, seconds, whether it worked, and what was said, of each task when it is
    done."""
    for name in names:
        start = time.perf_counter()
        try:
            said = TASKS[name](walk)
            worked = True
        except Failed as error:
            said = str(error)
            worked = False
        # the task's own: told like the others, so that the table is whole
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            worked = False
        yield name, time.perf_counter() - start, worked, said
        if name == "metrics":  # the last that asks the server
            walk.stack.close()


def main() -> int:
    """Exit code 1 if a task failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--clients", default=sys.executable, help="interpreter that has the clients"
    )
    parser.add_argument(
        "--base-url",
        default="",
        help="of a server that runs, instead of one of its own",
    )
    parser.add_argument(
        "--only", nargs="*", choices=list(TASKS), help="these tasks, and `install`"
    )
    given = parser.parse_args()
    names = [
        name for name in TASKS if not given.only or name in {"install", *given.only}
    ]
    failures = []
    print(f"{'task':16} {'seconds':>7}  ok   what was said", flush=True)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        # a link to another interpreter stays one
        clients = os.path.abspath(given.clients)
        walk = Walk(Path(folder), clients, given.base_url)
        with walk.stack:
            for name, seconds, worked, said in walk_tasks(walk, names):
                short = textwrap.shorten(said, 120, placeholder="...")
                print(
                    f"{name:16} {seconds:7.1f}  {'ok ' if worked else 'NO '}  {short}",
                    flush=True,
                )
                if not worked:
                    failures.append((name, said))
    for name, said in failures:
        print(f"\n--- {name} failed; what a newcomer sees:\n{said}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
