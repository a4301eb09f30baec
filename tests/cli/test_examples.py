"""The examples run as they are, and the forms that a page lists are read.

Those that need vLLM or a client are run in `tests/hosts/vllm` and
`tests/hosts/clients`.
"""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
from compilers import allowed, compiler_of, start, tokens_of
from example_runs import EXAMPLES, people
from script_files import ROOT

import guided_plugin as gp
from guided_plugin.demo import DEMOS

ELSEWHERE = {
    "vllm_offline",
    "vllm_server_client",
    "tools",
    "instructor_client",
    "langchain_client",
}
ELSEWHERE |= {"pydantic_ai_client", "serve"}


@pytest.fixture
def printed(capsys):
    """What an example prints."""

    def run(name):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_is_short_says_how_it_runs_and_is_tested():
    here = {
        "generate_json",
        "own_loop",
        "reasoning",
        "observer",
        "transformers_generate",
    }
    assert {file.stem for file in EXAMPLES.glob("*.py")} == here | ELSEWHERE
    for file in EXAMPLES.glob("*.py"):
        text = file.read_text()
        assert f"\npython examples/{file.name}" in ast.get_docstring(ast.parse(text)), (
            file.name
        )
        assert len(text.splitlines()) <= 120, file.name


def test_generate_json(printed):
    (line,) = [
        line
        for line in printed("generate_json").splitlines()
        if line.startswith("guided:")
    ]
    person = json.loads(line.removeprefix("guided:"))
    assert list(person) == ["name", "age"]
    assert len(person["name"]) <= 30


def test_own_loop(printed):
    told = printed("own_loop")
    people(told, "guided")
    assert re.search("^free: ", told, re.M)


def test_reasoning(printed):
    told = printed("reasoning")
    people(told, "answer")
    thought = re.search("^thought: (.+)$", told, re.M)[1]
    with pytest.raises(ValueError, match=r"."):  # free text
        jsonschema.validate(json.loads(thought), {})


def test_observer(printed):
    told = printed("observer").splitlines()
    documents = [json.loads(line) for line in told if line.startswith("{")]
    for document, demo in zip(documents, DEMOS, strict=True):
        jsonschema.validate(document, demo.schema)
    assert [line.split()[0] for line in told[:6]] == ["added:"] * 3 + ["finished:"] * 3
    assert int(re.search(r"^(\d+) tokens sampled", "\n".join(told), re.M)[1]) > 100
    assert re.fullmatch(r"guiding took [1-9]\d* us of a step", told[-1])


def test_transformers_generate(printed):
    told = printed("transformers_generate")
    records = re.findall(r"^guided: (\{.*\})$", told, re.M)
    for text in records:
        jsonschema.validate(
            json.loads(text),
            {"properties": {"age": {"maximum": 150}}, "required": ["age"]},
        )
    assert records
    assert re.search(r"^'(yes|no)'$", told, re.M)
    assert told.count("pipeline: name=") == 2


def test_the_notebook_runs_from_its_first_cell_to_its_last(capsys):
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # as committed
    assert all(
        (cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells
    )
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names = {"__name__": "__main__"}
    told = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        told[cell["id"]] = capsys.readouterr().out.splitlines()
    names["guide"].close()
    text, parsed = told["dataclass"]
    jsonschema.validate(json.loads(text), {"required": ["name", "age", "role"]})
    assert told["several"][0] == parsed
    assert told["several"][1] in ("'yes'", "'no'")


@pytest.fixture(scope="module")
def third_party(tmp_path_factory):
    """A folder into which the custom backend was installed, as pip installs any
    package."""
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(EXAMPLES / "custom_backend", folder / "source")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
    ]
    options = [
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(folder / "site"),
        str(folder / "source"),
    ]
    subprocess.run([*pip, *options], check=True, timeout=800)
    return folder / "site"


def _command(site, *arguments, stdin="", **more):
    """The exit code and the output of a command that finds the third party's
    package."""
    path = os.pathsep.join(
        filter(None, [str(site), str(ROOT), os.environ.get("PYTHONPATH")])
    )
    done = subprocess.run(
        [sys.executable, "-m", "guided_plugin.cli", *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=800,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_custom_backend_is_found_by_its_entry_point(third_party):
    code, told = _command(
        third_party,
        "check",
        "-",
        stdin='{"choice": ["yes", "no"], "backend": "choices"}',
    )
    assert (code, "compiles with choices" in told) == (0, True), told
    code, told = _command(
        third_party, "check", "-", stdin='{"regex": "a+", "backend": "choices"}'
    )
    assert (code, "takes no regex" in told) == (1, True), told


def test_masks_of_the_custom_backend_are_those_of_the_package():
    more = [b"ye", b"yes", b" in", b"no", b"yes", "ét".encode(), b"</s>"]
    tokens = [*(bytes([byte]) for byte in range(256)), *more]
    stop = len(tokens) - 1
    vocabulary = gp.Vocabulary.from_tokens(tokens, [stop])
    made = runpy.run_path(str(EXAMPLES / "custom_backend" / "guided_choices.py"))
    backend = made["Backend"](vocabulary, gp.GuidedConfig())
    texts = ["yes", "yes indeed", "no", "été"]
    spec = gp.OutputSpec.choice(texts)
    grammar = backend.compile(spec)
    for text in texts:
        matcher = backend.start(grammar, (stop,))
        own = start(compiler_of(vocabulary), spec)
        for token in [*text.encode(), stop]:
            mask = np.full((3, vocabulary.words), -1, np.int32)
            backend.batch([matcher]).fill(mask, [1])
            assert tokens_of(mask)[1] == allowed(own)
            assert matcher.complete == own.complete
            refused = next(one for one in range(256) if one not in allowed(own))
            assert matcher.fork().accept(token)
            twin = matcher.fork()
            for each in (matcher, twin, own):
                assert not each.fork().accept(refused)
                assert each.accept(token)


def test_forms_of_the_specs_page_are_specs():
    import guided_plugin

    page = (ROOT / "docs/specs.md").read_text()
    table = page[page.index("| from | form |") : page.index("A `whitespace_pattern`")]
    forms = [
        form
        for form in re.findall(r"`(\{[^`]*\})`", table)
        if "structural_tag" not in form
    ]
    forms.remove('{"format": {...}}')  # whose inside is the form before it
    assert len(forms) > 10
    filled = [
        re.sub(r'"\.\.\."|(?<=: )\.\.\.', '"x"', form.replace("{...}", "{}"))
        for form in forms
    ]
    specs = [
        guided_plugin.OutputSpec.parse(form.replace("[...]", '["x"]'))
        for form in filled
    ]
    assert sum(spec is None for spec in specs) == 1
    kinds = {spec.kind for spec in specs if spec}
    assert kinds == {"json_schema", "json_object", "regex", "choice", "grammar"}
