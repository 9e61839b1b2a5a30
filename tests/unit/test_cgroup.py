from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpdoctor import cgroup
from dpdoctor.cgroup import Throttling, cores, memory_left, throttling


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory: `membership` and below `mount` the cgroups are what the kernel tells."""
    (tmp_path / "mount").mkdir()
    monkeypatch.setattr(cgroup, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(cgroup, "_MOUNT", tmp_path / "mount")
    return tmp_path


def tell(kernel: Path, membership: str, **stats: str) -> None:
    """Write what the kernel tells of CPU time; a path's slashes are `__` in its keyword."""
    (kernel / "membership").write_text(membership)
    for path, text in stats.items():
        directory = kernel / "mount" / path.replace("__", "/").strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpu.stat").write_text(text)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on eight."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, 8),
        ("max 100000", 8),
        ("", 8),
        ("nonsense", 8),
        ("100000 100000", 1),
        ("20000 100000", 1),
        ("150000 100000", 2),
        ("100000000 100000", 8),
    ],
)
@pytest.mark.usefixtures("eight_cores")
def test_cores_are_what_the_affinity_and_the_quota_allow(kernel: Path, quota: str | None, expected: int) -> None:
    (kernel / "membership").write_text("0::/job\n")
    (kernel / "mount" / "job").mkdir()
    if quota is not None:
        (kernel / "mount" / "job" / "cpu.max").write_text(quota)
    assert cores() == expected


@pytest.mark.usefixtures("eight_cores")
def test_of_several_quotas_the_tightest_counts_whoever_has_it(kernel: Path) -> None:
    (kernel / "membership").write_text("0::/slice/job\n")
    (kernel / "mount" / "slice" / "job").mkdir(parents=True)
    (kernel / "mount" / "slice" / "cpu.max").write_text("300000 100000")
    (kernel / "mount" / "slice" / "job" / "cpu.max").write_text("500000 100000")
    assert cores() == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("250000", 3)])
@pytest.mark.usefixtures("eight_cores")
def test_a_quota_of_the_first_version_of_cgroups(kernel: Path, quota: str, expected: int) -> None:
    (kernel / "membership").write_text("4:cpu:/\n")
    (kernel / "mount" / "cpu").mkdir()
    (kernel / "mount" / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (kernel / "mount" / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cores() == expected


@pytest.mark.usefixtures("eight_cores")
def test_without_a_membership_all_of_the_affinity_are_cores(kernel: Path) -> None:
    assert not (kernel / "membership").exists()
    assert cores() == 8


def test_a_quota_around_the_own_cgroup_counts(kernel: Path) -> None:
    own = "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"
    around = "usage_usec 7\nnr_periods 90\nnr_throttled 30\nthrottled_usec 1500000\n"
    tell(kernel, "0::/pod/train\n", pod__train=own, pod=around, __="usage_usec 9\n")
    assert throttling() == Throttling(num_periods=90, num_throttled=30, throttled_s=1.5)


def test_version_1_counts_in_nanoseconds(kernel: Path) -> None:
    stat = "nr_periods 4\nnr_throttled 2\nthrottled_time 250000000\n"
    tell(kernel, "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n", **{"cpu,cpuacct__job": stat})
    assert throttling() == Throttling(num_periods=4, num_throttled=2, throttled_s=0.25)


def test_a_container_that_is_told_the_path_on_its_host_reads_its_own_mount(kernel: Path) -> None:
    stat = "nr_periods 4\nnr_throttled 0\nthrottled_usec 0\n"
    tell(kernel, "0::/kubepods/burstable/pod1\n", __=stat)
    assert throttling() == Throttling(num_periods=4, num_throttled=0, throttled_s=0)


def test_without_the_controller_nothing_is_known(kernel: Path) -> None:
    tell(kernel, "5:memory:/job\n", job="nr_periods 4\nnr_throttled 2\nthrottled_usec 9\n")
    with pytest.raises(ValueError, match="no cgroup of this process"):
        throttling()


def tell_memory(directory: Path, limit: str, used: int, *, version: int, reclaimable: int = 0) -> None:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, str(used), f"anon 5\n{names[2]} {reclaimable}"), strict=True):
        (directory / ("memory.stat" if name == names[2] else name)).write_text(f"{text}\n")


@pytest.mark.parametrize(("version", "membership", "below"), [(2, "0::", ""), (1, "4:memory:", "memory")])
def test_the_tightest_limit_of_memory_counts_and_the_page_cache_is_given_back(
    kernel: Path, version: int, membership: str, below: str
) -> None:
    (kernel / "membership").write_text(f"{membership}/slurm/job/step\n")
    root, none = kernel / "mount" / below, {1: "9223372036854771712", 2: "max"}[version]
    tell_memory(root / "slurm", none, 900, version=version)
    tell_memory(root / "slurm/job/step", none, 300, version=version)
    assert memory_left() is None
    tell_memory(root / "slurm/job", "1000", 700, version=version, reclaimable=150)
    assert memory_left() == 1000 - 700 + 150
    tell_memory(root / "slurm/job/step", "800", 300, version=version)
    assert memory_left() == 450, "the one around it is tighter"
    tell_memory(root / "slurm/job/step", "310", 300, version=version)
    assert memory_left() == 10
    tell_memory(root / "slurm", "500", 900, version=version)
    assert memory_left() == 0


def test_a_container_has_the_limit_of_its_own_mount(kernel: Path) -> None:
    (kernel / "membership").write_text("0::/kubepods/pod1\n")
    tell_memory(kernel / "mount", "1000", 600, version=2)
    assert memory_left() == 400


def test_where_the_kernel_tells_no_limit_there_is_none(kernel: Path) -> None:
    assert memory_left() is None
    (kernel / "membership").write_text("4:memory:/job\n0::/\n")
    assert memory_left() is None
