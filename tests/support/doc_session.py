"""Runs the blocks of a page one after the other, as a reader would.

A session has a folder with the shipped model at `path/to/model`. Commands run in bash;
`pip`, `vllm` and `make` are noted instead, for the test to have
their arguments read by the program they are for.
"""

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from doc_blocks import DATA
from script_files import ROOT

from benchmarks.answers.tasks import read_tasks
from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.demo import MODEL_DIR
from guided_plugin.diagnose.tools import tools_of

# Commands that take minutes, a GPU or data which is not here: their arguments are
# noted, and nothing is run.
_NOTED = """#!{python} -S
import json, os, sys
open({notes!r}, "a").write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:]]) + "\\n")
"""
_OWN = """#!{python}
import sys
from guided_plugin.cli import main
sys.argv[0] = "guided-plugin"
main()
"""
# Maintainers' commands are looked for, and not run.
_PYTHON = """#!/bin/sh
case "$1 $2" in "-m benchmarks."*)
    path={root}/$(echo "$2" | tr . /)
    test -e "$path.py" -o -e "$path/__main__.py"
    exit;;
"-m vllm.entrypoints.openai.api_server")
    shift 2; exec vllm serve "$@"
esac
exec {python} "$@"
"""


class Session:
    """The blocks of one page, in a folder of their own."""

    def __init__(self, folder, *, setup="", after="", server=""):
        """`setup`: Python of what the page takes for granted; `after`: of what ends it.
        `server`: in place of http://localhost:8000."""
        self._after = after
        self.folder = folder
        self._server = server
        self._output = ""
        self.ran = None
        """The block that `text` after it is compared with."""
        # What an `if __name__ == "__main__"` guards runs too.
        self._names = {"__name__": "__main__"}
        (folder / "path/to/a").mkdir(parents=True)
        for name in ("path/to/model", "path/to/a/model", "DIR"):
            (folder / name).symlink_to(MODEL_DIR)
        self._commands = folder / ".commands"
        self._commands.mkdir()
        self._notes = self._commands / "notes"
        self._notes.touch()
        for name, text in (
            ("guided-plugin", _OWN),
            *((name, _NOTED) for name in ("make", "pip", "vllm")),
        ):
            self._command(
                name, text.format(python=sys.executable, notes=str(self._notes))
            )
        self._command(
            "curl",
            '#!/bin/sh\nexec /usr/bin/env -u NO PATH="$REAL" curl -sS --fail-with-body "$@"\n',
        )
        self._command(
            "python",
            _PYTHON.format(
                python=shlex.quote(sys.executable), root=shlex.quote(str(ROOT))
            ),
        )
        exec(_compiled(setup, f"setup of {folder.name}"), self._names)

    @property
    def noted(self):
        """Commands whose arguments another program reads: its name, and they."""
        return [json.loads(line) for line in self._notes.read_text().splitlines()]

    def run(self, block):
        """Do with a block what `doc_blocks` says."""
        if block.language in DATA:
            self._keep(block)
        elif block.language == "text":
            self._compare(block)
        elif block.language == "python" and block.title:
            _is_excerpt(block)
        elif block.language in ("python", "sh"):
            self.ran = block
            (self._python if block.language == "python" else self._shell)(block)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        exec(_compiled(self._after, f"end of {self.folder.name}"), self._names)

    def _command(self, name, text):
        file = self._commands / name
        file.write_text(text)
        file.chmod(0o755)

    def _keep(self, block):
        """Write a file, after the program that it is for has read it."""
        assert block.title, f"{block.place}: no title says what it is"
        value = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}[
            block.language
        ](block.text)
        if block.title == "GUIDED_PLUGIN":
            GuidedConfig(**value)
        elif block.title == "pyproject.toml":
            for names in value["project"]["entry-points"].values():
                assert all(
                    re.fullmatch(r"[\w.]+(:\w+)?", target) for target in names.values()
                ), block.place
        elif block.title.startswith("schema"):
            OutputSpec.json_schema(value)
        elif block.title.startswith("spec"):
            OutputSpec.parse(value)
        elif block.title == "tasks.jsonl":
            (self.folder / block.title).write_text(block.text)
            assert read_tasks(self.folder / block.title), block.place
        elif block.title.startswith("tools"):
            assert tools_of(value), block.place
        elif block.title.startswith("good"):
            pass  # an instance: the command that follows judges it
        else:
            raise AssertionError(
                f"{block.place}: no program is known for {block.title!r}"
            )
        (self.folder / block.title).write_text(block.text)

    def _compare(self, block):
        checker = doctest.OutputChecker()
        same = checker.check_output(block.text, _plain(self._output), doctest.ELLIPSIS)
        assert same, f"{block.place}: the real output is\n{_plain(self._output)}"

    def _python(self, block):
        code = _compiled("\n" * block.line + self._here(block.text), block.page)
        out = io.StringIO()
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(out):
                exec(code, self._names)
        except Exception as error:
            error.add_note(f"in the block {block.place}")
            raise
        finally:
            os.chdir(before)
        self._output = out.getvalue()

    def _shell(self, block):
        environment = {
            **os.environ,
            "PATH": f"{self._commands}:{os.environ['PATH']}",
            "REAL": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
            ),
            "COLUMNS": "110",
        }
        bash = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", self._here(block.text)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._output = bash.stdout
        # 1: the command ran, and the answer is no; the page shows it.
        assert bash.returncode in (0, 1), (
            f"{block.place}: exit code {bash.returncode}\n{self._output}"
        )
        assert bash.returncode == 0 or re.search("refused|^error ", self._output), (
            f"{block.place}\n{self._output}"
        )

    def _here(self, text):
        """A block with this machine's server and device."""
        text = text.replace(
            "http://localhost:8000", self._server or "http://localhost:8000"
        )
        return text.replace('device="cuda"', 'device="cpu"')


def _is_excerpt(block):
    """Its lines, without comments and indents, stand in the file in this order; others
    may stand between."""
    there = iter(
        map(_code, (ROOT / block.title).read_text(encoding="utf-8").splitlines())
    )
    for line in filter(None, map(_code, block.text.splitlines())):
        assert line in there, (
            f"{block.place}: {block.title} has no such line here: {line}"
        )


def _code(line):
    return line.partition("#")[0].strip()


def _plain(text):
    """Without the spaces that pad a table's last column."""
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _compiled(source, name):
    """As a file of its own: no `from __future__` of ours is the page's."""
    return compile(source, name, "exec", dont_inherit=True)
