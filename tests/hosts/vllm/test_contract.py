"""The contract names everything that is touched in vLLM, and holds in the vLLM of this
process.

`make vllm-next-test` runs this with the Python files of other releases.
"""

import ast
import dataclasses
import json
import logging
import pathlib
import re

import pytest

import guided_plugin as gp
from guided_plugin.hosts.vllm import patches
from guided_plugin.hosts.vllm.names import ALL_NAMES, NAMES, Name, Part
from guided_plugin.hosts.vllm.patches import broken, difference, differences

PACKAGE = pathlib.Path(gp.__file__).parent
FILES = [*sorted((PACKAGE / "hosts" / "vllm").glob("*.py")), PACKAGE / "vllm.py"]
TREES = {path.name: ast.parse(path.read_text()) for path in FILES}
PATHS = {name.path for name in ALL_NAMES}

ROOTS = json.loads(pathlib.Path(__file__).with_name("objects.json").read_text())
"""Variables of our code that hold objects of vLLM's."""


@pytest.fixture(autouse=True)
def looked_at_again():
    patches._broken.cache_clear()
    yield
    patches._broken.cache_clear()


def covered(path):
    return any(known == path or known.startswith(f"{path}.") for known in PATHS)


def found(kind, *files):
    """The nodes of a kind in our code, but for some files."""
    for name, tree in TREES.items():
        if name not in files:
            yield from (node for node in ast.walk(tree) if isinstance(node, kind))


def test_every_name_that_is_imported_from_vllm_is_in_the_contract():
    imported = [
        f"{node.module}:{alias.name}"
        for node in found(ast.ImportFrom)
        if re.match(r"vllm\b", node.module or "")
        for alias in node.names
    ]
    assert len(imported) > 12
    assert [path for path in imported if not covered(path)] == [
        "vllm.outputs:RequestError"
    ]
    # Of 0.32 and later: `_error` is made only where vLLM's scheduler keeps errors.


def test_every_path_that_is_written_out_is_in_the_contract():
    written = [
        node.value
        for node in found(ast.Constant, "names.py")
        if re.fullmatch(r"vllm(\.\w+)+:[\w.]+", str(node.value))
    ]
    assert [path for path in written if not covered(path)] == []
    assert not any("import vllm" in ast.unparse(tree) for tree in TREES.values())


def test_every_attribute_of_an_object_of_vllms_is_in_the_contract():
    attributes = {}
    for name in ALL_NAMES:
        attributes.setdefault(name.path, set()).update(name.has)
        if "." in name.path.partition(":")[2]:
            owner, _, method = name.path.rpartition(".")
            attributes.setdefault(owner, set()).add(method)
    used = []
    for node in found(ast.Attribute):
        value = node.value
        root = getattr(value, "id", None) or getattr(value, "attr", None)
        if root in ROOTS:
            used.append((root, node.attr))
    assert len(used) > 50
    assert [one for one in used if one[1] not in attributes[ROOTS[one[0]]]] == []


def test_every_name_is_there_once_and_every_part_has_some():
    for names in NAMES.values():
        paths = [name.path for name in names]
        assert len(paths) == len(set(paths)) > 0
    assert list(NAMES) == list(Part)


def worse(name):
    """The same name, asked for something that no vLLM has."""
    yield dataclasses.replace(name, path=f"{name.path}_gone")
    if name.begins:
        yield dataclasses.replace(name, begins=(*name.begins[:-1], "gone"))
    if name.takes:
        yield dataclasses.replace(name, takes=(*name.takes, "gone"))
    if name.has:
        yield dataclasses.replace(name, has=(*name.has, "gone"))


def test_the_contract_holds_in_the_installed_vllm():
    """Nothing is missing, and each name is really looked at."""
    pytest.importorskip("vllm")
    parts = set(Part)
    if patches.version_text().startswith("0.31."):
        parts.remove(Part.JUMP)
        assert differences(Part.JUMP)
    assert {part.name: differences(part) for part in parts} == {
        part.name: [] for part in parts
    }
    for name in ALL_NAMES:
        for other in worse(name):
            assert difference(other) is not None, other


def test_release_candidates_and_local_builds_count_as_their_release():
    tested = "0.31.0 0.33.0rc1 0.33rc1 0.33.1.dev5+g123 0.33.0+cpu 0.31.post1 v0.32.1"
    assert all(map(patches.is_tested, tested.split()))
    assert not any(map(patches.is_tested, ["0.30.9", "0.34.0", "1.0", "dev"]))


def test_a_broken_part_is_refused_by_name_and_stops_no_other(monkeypatch, caplog):
    """V1 alone, V2 alone and so on."""
    caplog.set_level(logging.INFO)
    names = {part: NAMES[part][:1] for part in Part}
    pytest.importorskip("vllm")
    for part in Part:
        patches._broken.cache_clear()
        gone = Name("vllm.sampling_params:SamplingParams.no_such_method")
        changed = {**names, part: (*names[part], gone)}
        monkeypatch.setattr(patches, "NAMES", changed)
        for other in Part:
            error = broken(other)
            assert (error is not None) is (other is part)
            if error is not None:
                assert "no vllm.sampling_params:SamplingParams.no_such_method" in str(
                    error
                )
                assert part.value in str(error)
                assert "guided-plugin doctor" in str(error)
    assert len(caplog.records) == len(Part)
