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

    page = (ROOT / "docs/specs.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block.replace("{...}", '{"type": "any_text"}'), {"MyPydanticModel": MyPydanticModel})
    table = page[page.index("| from | form |") : page.index("A pattern for whitespace")]
    forms = [form for form in re.findall(r"`(\{[^`]*\})`", table) if "structural_tag" not in form]
    forms.remove('{"format": {...}}')  # whose inside is the form before it
    assert len(forms) > 12
    filled = [re.sub(r'"\.\.\."|(?<=: )\.\.\.', '"x"', form.replace("{...}", "{}")) for form in forms]
    specs = [guided_plugin.OutputSpec.parse(form.replace("[...]", '["x"]')) for form in filled]
    assert sum(spec is None for spec in specs) == 1
    kinds = {spec.kind for spec in specs if spec}
    assert kinds == {"json_schema", "json_object", "regex", "choice", "grammar"}
