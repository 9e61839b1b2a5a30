from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from dpdoctor.worker.arms import _memory


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for the one of version 2."""
    monkeypatch.setattr(_memory, "_CGROUPS", ((tmp_path, "memory.max", "memory.current", "inactive_file"),))
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    return tmp_path


def test_a_container_has_what_its_limit_leaves_and_what_the_page_cache_gives_back(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("1000\n")
    assert _memory.available_bytes() == 1000 - 700 + 150


def test_a_container_over_its_limit_has_nothing(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("500\n")
    assert _memory.available_bytes() == 0


@pytest.mark.parametrize("limit", ["max\n", str(2**62)])
def test_without_a_limit_the_machine_counts(cgroup: Path, limit: str) -> None:
    (cgroup / "memory.max").write_text(limit)
    assert _memory.available_bytes() == pytest.approx(psutil.virtual_memory().available, rel=0.5)
