"""The examples run as they are, and the README's Python and console blocks say what is true."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["count_tokens", "generate_json", "transformers_generate"])
def test_example_runs(name):
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    documents = [line.removeprefix("guided:").strip() for line in done.stdout.splitlines() if '{"' in line]
    assert documents
    json.loads(documents[0])


def test_readme_python_block_runs_with_the_demo_model(capsys):
    from guided_plugin.demo import MODEL_DIR

    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    exec(block.replace("path/to/a/model", str(MODEL_DIR)), {"__name__": "readme"})
    printed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert list(printed) == ["name", "age"]


def test_specs_page_examples_are_specs():
    from pydantic import BaseModel

    import guided_plugin

    class MyPydanticModel(BaseModel):
        age: int

    first, forms = re.findall(r"```python\n(.*?)```", (ROOT / "docs/specs.md").read_text(), re.DOTALL)
    first = first.replace("{...}", '{"type": "any_text"}')
    exec(first, {"MyPydanticModel": MyPydanticModel})
    wire = [line.rsplit("  #", 1)[0].rstrip() for line in forms.replace("{...}", "{}").splitlines()]
    parsed = [
        guided_plugin.OutputSpec.parse(form)
        for line in wire
        for form in eval(f"[{line.replace('[...]', '[str()]')}]")
    ]
    assert sum(spec is None for spec in parsed) == 1
    assert {spec.kind for spec in parsed if spec} == {
        "json_schema",
        "json_object",
        "regex",
        "choice",
        "grammar",
    }
