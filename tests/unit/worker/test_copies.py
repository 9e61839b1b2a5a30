from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.worker import copies as copies_module
from dpdoctor.worker.copies import Copy, copies

OF_A_RUN = '{"schema": 2, "dpdoctor": "0.1.0"}'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Give a directory with code, a link, a large file, a large directory and an earlier run."""
    found = tmp_path / "home"
    for name in ("code/inner", "runs/old", "data", "empty"):
        (found / name).mkdir(parents=True)
    (found / "train.py").write_text("train()")
    (found / "code/inner/model.py").write_text("model")
    (found / "link").symlink_to("train.py")
    (found / "runs/old" / rundir.HEADER).write_text(OF_A_RUN)
    (found / "runs/notes.txt").write_text("kept")
    (found / "data/large").write_bytes(bytes(1000))
    return found


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_all_is_copied_but_what_is_large_and_earlier_runs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "MOST_BYTES", 900)
    own = home / "runs/new/bare"
    own.mkdir(parents=True)
    (own.parent / rundir.HEADER).write_text(OF_A_RUN)
    # The user's own.
    (home / "code" / rundir.HEADER).write_text('{"columns": []}')
    (copy,) = copies([home, home / "code"], tmp_path / "copies", own)
    assert copy == Copy(of=home, at=tmp_path / "copies/0", left=("data",))
    code = ["code", f"code/{rundir.HEADER}", "code/inner", "code/inner/model.py"]
    runs = ["runs", "runs/new", "runs/new/bare", "runs/notes.txt"]
    assert names(copy.at) == [*code, "data", "empty", "link", *runs, "train.py"]
    assert (copy.at / "train.py").read_text() == "train()"
    assert (copy.at / "link").readlink() == Path("train.py")
    assert (copy.at / "train.py").stat().st_mtime_ns == (home / "train.py").stat().st_mtime_ns


@pytest.mark.parametrize(("most_files", "left"), [(11, ()), (9, ("runs",)), (6, ("data", "runs"))])
def test_many_files_are_left_and_what_comes_after_may_still_be_copied(
    most_files: int, left: tuple[str, ...], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "MOST_FILES", most_files)
    for name in ("code", "data"):
        (home / name / "more").write_text("more")
    (copy,) = copies([home], tmp_path / "copies", tmp_path)
    assert copy.left == left


def test_what_is_no_file_is_left(home: Path, tmp_path: Path) -> None:
    os.mkfifo(home / "data/pipe")
    (copy,) = copies([home], tmp_path / "copies", tmp_path)
    assert copy.left == ("data",)
    assert names(copy.at / "data") == []


def test_there_is_no_copy_beside_a_large_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a mount, which no other file can replace."""
    monkeypatch.setattr(copies_module, "MOST_BYTES", 900)
    (home / "weights.pt").write_bytes(bytes(1000))
    assert copies([home], tmp_path / "copies", tmp_path) == ()
    assert list((tmp_path / "copies").iterdir()) == []


def test_there_is_no_copy_of_what_cannot_be_copied_whole(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(copies_module, "_copy", refuse)
    assert copies([home], tmp_path / "copies", tmp_path) == ()
    assert list((tmp_path / "copies").iterdir()) == []


def test_there_is_no_copy_on_another_file_system(home: Path, tmp_path: Path) -> None:
    assert copies([home], tmp_path / "copies", Path("/proc")) == ()
    assert not (tmp_path / "copies").exists()
