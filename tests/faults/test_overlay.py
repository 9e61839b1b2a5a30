"""A profile run never changes a file that existed before it, and the script does not notice."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import SCRIPTS, SHORT, Profiled, in_turn

NEW = {
    "best.pt", "final.txt", "last.pt", "latest.pt", "moved.txt", "raw.bin", "table.txt", "traced.pt",
    *(f"cache/{index}.npy" for index in range(8)),
}  # fmt: skip
CHANGED = {"config.json", "log.txt", "runs.db"}
REMOVED = {"old.txt", "previous"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the script and what an earlier run of it left."""
    folder = tmp_path / "project"
    (folder / "previous").mkdir(parents=True)
    shutil.copy(SCRIPTS / "writes.py", folder)
    for name in ("config.json", "old.txt", "previous/result.txt"):
        (folder / name).write_text(f"{name} of yesterday")
    (folder / "log.txt").write_text("yesterday\n")
    with contextlib.closing(sqlite3.connect(folder / "runs.db")) as database, database:
        database.execute("create table runs (number)")
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Return what every file below a folder holds, as a hash; directories too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(("mode", "wall"), [("single", "none"), ("ddp", "none"), ("ddp", "overlay")])
def test_nothing_changes_and_what_would_have_is_listed(
    folder: Path, profile: Callable[..., Profiled], mode: str, wall: str
) -> None:
    before = tree(folder)
    done = profile(str(folder / "writes.py"), "--modes", mode, "--no-baseline", "--wall", wall, *SHORT)
    assert done.exit_code == 0, done.output
    assert tree(folder) == before
    for rank in done.launch(mode).ranks:
        printed = done.printed(mode, rank.index)
        assert "read notes 1 2.0" in printed
        assert "log ['yesterday', 'step 1']" in printed
        listed = next(line for line in printed.splitlines() if line.startswith("listed")).split()[1:]
        assert listed == sorted(
            {"cache", "writes.py"} | CHANGED | {name for name in NEW if "/" not in name and name != "final.txt"}
        )
        written = {
            (Path(each.path).relative_to(folder).as_posix(), each.change) for each in rank.record.conversion.written
        }
        assert written == {(name, "new") for name in NEW} | {(name, "changed") for name in CHANGED} | {
            (name, "removed") for name in REMOVED
        }
        assert not (done.root / mode / f"rank{rank.index}" / "overlay").exists()
    assert (
        f"{len(NEW | CHANGED | REMOVED)} files that the script would have written or removed were left alone"
        in " ".join(done.output.split())
    )


def test_allowed_to_it_really_writes(folder: Path, profile: Callable[..., Profiled]) -> None:
    done = profile(str(folder / "writes.py"), "--modes", "single", "--allow-writes", *SHORT)
    assert done.exit_code == 0, done.output
    after = tree(folder)
    assert set(after) >= NEW
    assert not REMOVED & set(after)
    assert (folder / "log.txt").read_text() == "yesterday\nstep 1\n"
    assert done.record("single").conversion.written == ()


def skip_without(wall: str, done: Profiled) -> None:
    """Skip where the kernel lets this user put up no such wall."""
    record = done.record("single")
    if record.protected_by != wall:
        pytest.skip(record.not_walled)


def test_what_child_programs_write_behind_an_overlay_only_the_script_sees(
    tmp_path: Path, profile: Callable[..., Profiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("precious", "theirs", "mode"):
        (tmp_path / f"{name}.txt").write_text(name)
    shutil.copy(SCRIPTS / "writes_past.py", tmp_path)
    before = tree(tmp_path), (tmp_path / "mode.txt").stat().st_mode
    done = profile(str(tmp_path / "writes_past.py"), "--modes", "single", *SHORT, cwd=tmp_path)
    assert done.exit_code == 0, done.output
    skip_without("kernel", done)
    after = {path: text for path, text in tree(tmp_path).items() if path.split("/")[0] != done.root.name}
    assert (after, (tmp_path / "mode.txt").stat().st_mode) == before
    assert done.printed("single").startswith("copied 0 theirs")
    assert not done.mode("single")["files_changed"]
    assert "an overlay of the kernel's" in done.mode("single")["file_protection"]


@pytest.mark.parametrize("where", ["beside", in_turn("below")])
def test_what_child_programs_do_is_refused_or_told(
    tmp_path: Path, profile: Callable[..., Profiled], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Landlock cannot stand around what lies among temporary files: what is new there is everybody's."""
    folder, temporary = tmp_path / "project", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary if where == "beside" else tmp_path))
    monkeypatch.chdir(folder)
    for name in ("precious", "theirs", "mode"):
        (folder / f"{name}.txt").write_text(name)
    shutil.copy(SCRIPTS / "writes_past.py", folder)
    done = profile(str(folder / "writes_past.py"), "--modes", "single", "--wall", "landlock", *SHORT, cwd=folder)
    assert done.exit_code == 0, done.output
    if where == "beside":
        skip_without("landlock", done)
    record, said, mode = done.record("single"), " ".join(done.output.split()), done.mode("single")
    assert record.protected_by == {"beside": "landlock", "below": "python"}[where]
    changed = {Path(file["path"]).name: file["change"] for file in mode["files_changed"]}
    if where == "beside":
        assert (folder / "precious.txt").read_text() == "precious"
        assert changed == {"mode.txt": "changed"}
        assert "The script was refused files" in said
        assert "precious.txt': Permission denied. --allow-writes lets it write" in said
        assert "Landlock" in mode["file_protection"]
    else:
        assert changed == {"mode.txt": "changed", "precious.txt": "changed"}
        assert f"; {folder} lies in a directory for temporary files" in mode["file_protection"]
    assert "mode.txt (changed)" in said
    assert mode["file_protection"] in (done.root / "report.html").read_text()


@pytest.mark.parametrize("within", [(), ("logs",)])
def test_a_tracker_uploads_nothing_and_its_folder_is_kept_away_whoever_writes_it(
    tmp_path: Path, profile: Callable[..., Profiled], monkeypatch: pytest.MonkeyPatch, within: tuple[str, ...]
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    done = profile("tracker/train.py", "--modes", "ddp", "--no-baseline", *SHORT, args=within)
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    for rank in done.launch("ddp").ranks:
        assert done.printed("ddp", rank.index).startswith("mode offline ['process', 'program', 'thread']")
        written = {Path(each.path).relative_to(tmp_path).as_posix() for each in rank.record.conversion.written}
        assert written == {"/".join((*within, "wandb/run-p", name)) for name in ("process", "program", "thread")}
        assert not (done.root / "ddp" / f"rank{rank.index}" / "overlay").exists()
    (said,) = (text for text in done.record("ddp").conversion.warnings if "wandb" in text)
    assert said.startswith(f"wandb at {SCRIPTS}/tracker/train.py:15 runs offline: nothing is uploaded")
