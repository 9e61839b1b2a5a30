from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.launch import cgroup
from dpdoctor.launch.cgroup import Throttling, throttling


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory: `membership` and below `mount` the cgroups are what the kernel tells."""
    (tmp_path / "mount").mkdir()
    monkeypatch.setattr(cgroup, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(cgroup, "_MOUNT", tmp_path / "mount")
    return tmp_path


def tell(kernel: Path, membership: str, **stats: str) -> None:
    """Write what the kernel tells; a path's slashes are `__` in its keyword."""
    (kernel / "membership").write_text(membership)
    for path, text in stats.items():
        directory = kernel / "mount" / path.replace("__", "/").strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpu.stat").write_text(text)


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
