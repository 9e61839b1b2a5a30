from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.launch import folders


def test_whatever_changes_is_named_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "home"
    own = f"data/{rundir.HEADER}"
    for name in ("kept", "longer", "touched", "mode", "gone", "replaced", "data/deep", own, ".git/index", "run/other"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    (home / "run" / rundir.HEADER).write_text('{"dpdoctor": "0.1.0"}')
    before = folders.look([home, home])
    (home / "longer").write_text("mine and yours")
    os.utime(home / "touched", ns=(1, 1))
    (home / "mode").chmod(0o600)
    (home / "gone").unlink()
    (home / "other").write_text("mine")
    times = (home / "replaced").stat()
    (home / "other").replace(home / "replaced")
    os.utime(home / "replaced", ns=(times.st_atime_ns, times.st_mtime_ns))
    (home / "data/deep").write_text("")
    (home / "data/new").write_text("12345")
    for passed_over in (".git/index", "run/other", "run/single.json"):
        (home / passed_over).write_text("ours or git's")
    (home / "kept").read_text()
    found = folders.look([home, home]).changed_since(before)
    assert [(Path(file.path).relative_to(home).as_posix(), file.change, file.num_bytes) for file in found] == [
        ("data/deep", "changed", 0),
        ("data/new", "new", 5),
        ("gone", "removed", 0),
        ("longer", "changed", 14),
        ("mode", "changed", 4),
        ("replaced", "changed", 4),
        ("touched", "changed", 4),
    ]


def test_what_is_too_much_or_not_there_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folders.look([tmp_path / "absent"]) == folders.Folders()
    for name in "abc":
        (tmp_path / name).touch()
    monkeypatch.setattr(folders, "MOST_ENTRIES", 2)
    assert "too much" in folders.look([tmp_path]).unknown


def test_what_programs_keep_for_themselves_is_no_change_when_it_is_made(tmp_path: Path) -> None:
    before = folders.look([tmp_path])
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "train.pyc").touch()
    assert folders.look([tmp_path]).changed_since(before) == ()


def test_a_repository_that_is_made_or_removed_is_told(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".venv").mkdir()
    before = folders.look([tmp_path])
    (tmp_path / ".git").rmdir()
    (tmp_path / "sub/.git").mkdir(parents=True)
    (tmp_path / "sub/.git/index").touch()
    found = folders.look([tmp_path]).changed_since(before)
    names = [(Path(file.path).relative_to(tmp_path).as_posix(), file.change) for file in found]
    assert names == [(".git", "removed"), ("sub", "new"), ("sub/.git", "new")]
