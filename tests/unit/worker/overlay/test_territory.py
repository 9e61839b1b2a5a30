from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.worker.overlay.territory import Territory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory that a variable names as a cache."""
    found = tmp_path / "hub"
    found.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(found))
    return found


def test_a_home_in_a_cache_is_protected_and_the_rest_of_the_cache_is_free(tmp_path: Path, cache: Path) -> None:
    home = cache / "models/mine"
    territory = Territory(tmp_path / "run", [home])
    asked = (home, home / "train.py", cache / "models", cache / "models/other", cache / "models/mine2")
    assert [territory.is_free(str(path)) for path in asked] == [False, False, True, True, True]


def test_a_run_directory_is_free_though_it_lies_in_a_home(cache: Path) -> None:
    home = cache / "mine"
    territory = Territory(home / "run", [home])
    free = [name for name in ("run", "run/rank0/a", "runs", "a") if territory.is_free(str(home / name))]
    assert free == ["run", "run/rank0/a"]


def test_what_lies_nowhere_of_these_is_protected(tmp_path: Path, cache: Path) -> None:
    territory = Territory(tmp_path / "run", [tmp_path / "home"])
    assert not any(territory.is_free(str(tmp_path / name)) for name in ("data", "home/a", cache.name + "2", ""))
