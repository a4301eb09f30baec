"""Each section of `doctor`, with set-ups that are broken."""

import importlib.metadata
import tomllib
from types import SimpleNamespace

import pytest
from script_files import ROOT

from guided_plugin.diagnose import doctor, machine
from guided_plugin.hosts.vllm import patches
from guided_plugin.hosts.vllm.names import ALL_NAMES, Part
from guided_plugin.ipc import processors


def problems(look):
    found = [finding for finding in look() if finding.status == "problem"]
    assert all(finding.remedy for finding in found)
    return [finding.what for finding in found]


def test_the_required_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [f"{name}>={oldest}" for name, oldest in doctor.REQUIRED.items()]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["torch"], *extras["transformers"]]
    assert all(any(one.startswith(each) for one in declared) for each in named)
    groups = {
        (group, name, value)
        for group, points in project["entry-points"].items()
        for name, value in points.items()
    }
    assert {
        (group, name, value) for group, (name, value, _) in doctor.POINTS.items()
    } == groups


def test_what_is_installed_here_is_no_problem():
    assert problems(doctor.versions) == []


def test_a_backend_that_is_missing_or_old_is_told(monkeypatch):
    def version(package):
        if package in ("torch", "xgrammar"):
            raise importlib.metadata.PackageNotFoundError(package)
        return {"llguidance": "1.7.5"}.get(package, "99")

    monkeypatch.setattr(doctor, "version", version)
    missing = "torch is not installed"  # transformers is, which needs it
    assert problems(doctor.versions) == [
        missing,
        "llguidance 1.7.5 is older than 1.7.6",
    ]
    told = [one.what for one in doctor.versions()]
    assert "xgrammar is not installed: only EBNF grammars need it" in told


def test_the_driver_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "version")
    assert [*doctor.versions()][-1].status == "unknown"
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build"
    (tmp_path / "version").write_text(text)
    assert [*doctor.versions()][-1].what == "NVIDIA driver 570.124.06"


@pytest.mark.parametrize(
    ("value", "status", "part"),
    [
        ("", "ok", "all options have their defaults"),
        ("1", "ok", "enabled = true (GUIDED_PLUGIN)"),
        ("0", "note", "switches the package off"),
        (
            '{"threads": 2, "take_over": true}',
            "ok",
            "threads = 2 (GUIDED_PLUGIN), take_over = true (GUIDED_PLUGIN)",
        ),
    ],
)
def test_options_are_shown_as_they_are_read(monkeypatch, value, status, part):
    monkeypatch.setenv("GUIDED_PLUGIN", value)
    (found,) = doctor.options()
    assert found.status == status
    assert part in found.what


@pytest.fixture
def points(monkeypatch):
    """Choose the entry points that are found, and whether vLLM is."""

    def call(found, *, vllm=True):
        groups = {
            group: [SimpleNamespace(name=name, value=value)]
            for group, (name, value, _) in found.items()
        }
        monkeypatch.setattr(doctor, "entry_points", lambda group: groups.get(group, []))
        monkeypatch.setattr(
            doctor, "find_spec", lambda name: object() if vllm else None
        )
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)

    return call


def test_entry_points_that_are_there(points):
    points(doctor.POINTS)
    assert {found.status for found in doctor.entries()} == {"ok"}


def test_a_path_in_place_of_an_installation_has_no_entry_points(points):
    points({})
    (what,) = problems(doctor.entries)
    assert all(group in what for group in doctor.POINTS)
    assert "is imported from" in what
    points({}, vllm=False)
    assert problems(doctor.entries) == []
    assert "note" in {found.status for found in doctor.entries()}


def test_an_entry_point_of_an_older_version_does_not_count(points):
    group = "vllm.general_plugins"
    points(
        {
            **doctor.POINTS,
            group: ("guided_plugin", "guided_plugin.vllm_gate:install", ""),
        },
    )
    (what,) = problems(doctor.entries)
    assert f"no entry point in {group}" in what


@pytest.mark.parametrize(
    ("value", "count"), [("other", 1), ("", 1), ("other,guided_plugin", 0)]
)
def test_plugins_that_vllm_is_told_to_leave_out(points, monkeypatch, value, count):
    points(doctor.POINTS)
    monkeypatch.setenv("VLLM_PLUGINS", value)
    assert len(problems(doctor.entries)) == count


def test_a_third_party_that_cannot_be_loaded_is_named(monkeypatch):
    monkeypatch.setenv("GUIDED_PLUGIN", '{"disabled_plugins": ["nobodys"]}')
    monkeypatch.setattr(doctor, "SECTIONS", {"self-test": machine.self_test})
    (found,) = doctor.examine()["self-test"]
    assert "no plugin named 'nobodys'" in found.what


def test_no_vllm_is_no_failure(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert [found.status for found in doctor.vllm()] == ["unknown"]


def test_a_broken_contract_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    monkeypatch.setattr(patches, "difference", lambda name: f"no {name.path}")
    monkeypatch.setattr(patches, "version_text", lambda: "9.1.0")
    found = problems(doctor.vllm)
    assert len(found) == len(Part)
    told = " ".join(found)
    assert all(name.path in told for name in ALL_NAMES)
    assert next(doctor.vllm()).status == "note"


def test_threads_that_a_quota_throttles_are_told(monkeypatch):
    monkeypatch.setattr(processors, "affine", lambda: 64)
    monkeypatch.setattr(processors, "_quota_at_first", lambda: 4.0)
    monkeypatch.setattr(processors, "quota", lambda: 4.0)
    monkeypatch.setenv("GUIDED_PLUGIN", '{"threads": 12}')
    assert (
        "12 threads fill masks within a quota of 4 processors"
        in problems(machine.processor_time)[0]
    )
    assert "64 of" in next(machine.processor_time()).what
    monkeypatch.delenv("GUIDED_PLUGIN")
    assert problems(machine.processor_time) == []  # what is chosen by itself fits
    monkeypatch.setattr(processors, "quota", lambda: 1.5)
    monkeypatch.setenv("GUIDED_PLUGIN", '{"threads": 1}')
    assert [found.status for found in machine.processor_time()] == ["ok", "note"]


@pytest.fixture
def devices(monkeypatch, tmp_path):
    """Choose what CUDA has to say."""

    def call(*, reason="", driver=False, supported=lambda index: True):
        monkeypatch.setattr(
            "guided_plugin.pipeline.runtime.cuda_reason", lambda index=0: reason
        )
        monkeypatch.setattr(
            "guided_plugin.worker.device.streamops.supported", supported
        )
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "H200")
        monkeypatch.setattr(
            machine, "DRIVER", tmp_path if driver else tmp_path / "none"
        )
        (found,) = machine.cuda()
        return found.status, found.what

    return call


def test_cuda(devices):
    assert devices(reason="not compiled") == ("unknown", "no CUDA: not compiled")
    assert devices(reason="not compiled", driver=True)[0] == "problem"
    assert devices()[0] == "ok"
    assert devices(supported=lambda index: False)[0] == "note"

    def broken(index):
        raise OSError("libcuda.so.1: no such file")

    assert devices(supported=broken)[0] == "problem"
