"""Runs examples as programs and judges what they print. Depends on jsonschema and `re`
alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
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


def run_example(name, *arguments, cwd, seconds=800):
    """What an example prints; it runs in a folder of its own, with this checkout's
    package."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=cwd,
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def people(lines, *starts):
    """The records of the lines that begin so, one each; all are people."""
    found = []
    for start in starts:
        (line,) = [
            line
            for line in lines.splitlines()
            if re.match(f"{start}:? ", line) and "{" in line
        ]
        record = json.loads(line[line.index("{") :])
        jsonschema.validate(record, PERSON)
        found.append(record)
    return found
