"""Names of vLLM that are not there. Those that are: `test_contract.py`."""

import re
import sys

import pytest

from guided_plugin.hosts.vllm import patches
from guided_plugin.hosts.vllm.names import Name
from guided_plugin.hosts.vllm.patches import difference

FILES = {
    "__init__.py": "",
    "base.py": "class Base:\n    def send(self, method): ...\n",
    "broken.py": "import surely_not_installed\nclass Thing: ...\n",
}


@pytest.fixture
def small_package(tmp_path, monkeypatch):
    """A package that is taken for vLLM."""
    root = "shapes_of_vllm"
    for name, text in FILES.items():
        file = tmp_path / root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(patches, "_ROOT", root)
    yield
    for module in [
        module for module in sys.modules if module.partition(".")[0] == root
    ]:
        del sys.modules[module]


@pytest.mark.parametrize(
    "path",
    [
        "nothing:Base",
        "base:Nothing",
        "base:Base.nothing",
        "base:Base.send.more",
        "base.nothing:A",
    ],
)
def test_what_is_not_there_is_named(small_package, path):
    name = Name(f"shapes_of_vllm.{path}")
    assert re.match(r"no (module )?shapes_of_vllm\.", difference(name))


def test_a_module_that_lacks_another_package_is_told_from_one_that_is_gone(
    small_package, monkeypatch
):
    thing = Name("shapes_of_vllm.broken:Thing")
    assert "surely_not_installed" in difference(thing)
    monkeypatch.setattr(patches, "_ENDPOINTS", "shapes_of_vllm.")
    monkeypatch.setattr(patches, "_ROOT", "shapes_of_vllm")
    gone = Name("shapes_of_vllm.gone:Thing")
    assert "no module shapes_of_vllm.gone" in difference(gone)
    assert difference(thing) is None
