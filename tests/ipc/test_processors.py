"""How many processors a process may keep busy."""

import pytest

import guided_plugin as gp
from guided_plugin.ipc import processors


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """A folder in place of the control groups; this process is in the root of them."""
    own = tmp_path / "own"
    own.write_text("0::/\n")
    monkeypatch.setattr(processors, "_OWN_GROUPS", own)
    monkeypatch.setattr(processors, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "groups" / "cpu").mkdir(parents=True)
    processors._quota_at_first.cache_clear()
    yield tmp_path / "groups"
    processors._quota_at_first.cache_clear()


def test_the_quota_is_the_least_of_the_groups(groups):
    assert processors.quota() is None
    (groups / "cpu.max").write_text("max 100000\n")
    assert processors.quota() is None
    (groups / "cpu.max").write_text("250000 100000\n")
    assert processors.quota() == 2.5
    (groups / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (groups / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert processors.quota() == 2.5
    (groups / "cpu/cpu.cfs_quota_us").write_text("150000\n")
    assert processors.quota() == 1.5


def test_groups_above_count_too(groups, monkeypatch, tmp_path):
    (tmp_path / "own").write_text("0::/pod/container\n")
    (groups / "pod" / "container").mkdir(parents=True)
    (groups / "pod" / "cpu.max").write_text("300000 100000\n")
    (groups / "pod" / "container" / "cpu.max").write_text("max 100000\n")
    assert processors.quota() == 3.0


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max", 64), ("50000", 1), ("250000", 3), ("400000", 4), ("9900000", 64)],
)
def test_a_process_counts_what_its_quota_leaves_it(
    groups, monkeypatch, quota, expected
):
    monkeypatch.setattr(processors, "_AT_IMPORT", set(range(64)))
    (groups / "cpu.max").write_text(f"{quota} 100000\n")
    assert processors.count() == expected
    assert processors.affine() == 64
    assert gp.GuidedConfig().thread_count() == max(1, min(12, expected * 3 // 4))


def test_the_quota_is_read_once(groups, monkeypatch):
    monkeypatch.setattr(processors, "_AT_IMPORT", set(range(8)))
    (groups / "cpu.max").write_text("200000 100000\n")
    assert processors.count() == 2
    (groups / "cpu.max").write_text("400000 100000\n")
    assert processors.count() == 2  # threads and helpers were made by it
    assert processors.quota() == 4.0
