"""Which walls stand around a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.worker import protection
from tests.unit.launch.conftest import task_in


@pytest.mark.parametrize(("is_loaded", "by"), [(False, "python"), (True, "landlock")])
def test_no_wall_stands_where_cuda_has_yet_to_load_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_loaded: bool, by: str
) -> None:
    node = tmp_path / "nvidia-uvm"
    if is_loaded:
        node.touch()
    monkeypatch.setattr(protection, "UNIFIED_MEMORY", node)
    monkeypatch.setattr(protection.landlock, "stand", lambda _: None)
    assert protection.protect(task_in(tmp_path / "run", devices=("0", "1"))).by == by
    assert protection.protect(task_in(tmp_path / "run")).by == "landlock"
