"""The examples run as they are, and the README's Python and console blocks say what is true."""

import json
import re
import runpy

import pytest
from script_files import ROOT


@pytest.mark.parametrize("name", ["count_tokens", "generate_json", "transformers_generate"])
def test_example_runs(name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    runpy.run_path(f"examples/{name}.py", run_name="__main__")
    printed = capsys.readouterr().out
    documents = [line.removeprefix("guided:").strip() for line in printed.splitlines() if '{"' in line]
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
