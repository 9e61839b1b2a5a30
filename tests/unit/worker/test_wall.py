"""A real process behind a real wall; where the kernel allows none, that is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpdoctor.worker import wall

# What kernels answer that keep users from namespaces or from overlays in them.
NOT_ALLOWED = ("not permitted", "Permission denied", "No space left", "not implemented", "No such device")
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from dpdoctor.worker import wall
opened, home = map(Path, sys.argv[1:])
scratch = opened / "scratch"
scratch.mkdir()
print(wall.stand(scratch, opened=opened, homes=[home]))
(home / "old.txt").write_text("changed")
(home / "gone.txt").unlink()
(home / "made").mkdir()
subprocess.run(["sh", "-c", "echo by a child > made/new.txt; chmod 600 old.txt"], check=True, cwd=home)
print(sorted(path.name for path in home.rglob("*")))
print((home / "made/new.txt").read_text(), end="")
(opened / "kept.txt").write_text("kept")
print(Path.cwd(), os.access("/dev/null", os.W_OK), Path("/proc/self/stat").exists())
"""


def behind(opened: Path, home: Path) -> list[str]:
    """Return what a script printed that wrote into both; skip where there is no wall."""
    command = [sys.executable, "-c", SCRIPT, str(opened), str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=home)
    stands, *printed = done.stdout.splitlines()
    if any(word in stands for word in NOT_ALLOWED):
        pytest.skip(f"this kernel lets this user make no namespace of its own: {stands}")
    assert stands == "None"
    return printed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    found = tmp_path / "a home, of: mine"
    found.mkdir()
    for name in ("old.txt", "gone.txt"):
        (found / name).write_text("mine")
    return found


def test_what_is_written_behind_it_is_seen_there_and_nowhere_else(tmp_path: Path, home: Path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    before = (home / "old.txt").stat()
    seen, child, rest = behind(opened, home)
    assert (seen, child) == ("['made', 'new.txt', 'old.txt']", "by a child")
    assert rest == f"{home} True True"
    assert {path.name: path.read_text() for path in home.iterdir()} == {"old.txt": "mine", "gone.txt": "mine"}
    after = (home / "old.txt").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ino) == (before.st_mode, before.st_mtime_ns, before.st_ino)
    assert (opened / "kept.txt").read_text() == "kept"


def test_nothing_stays_mounted(tmp_path: Path, home: Path) -> None:
    opened = home / "opened"
    opened.mkdir()
    behind(opened, home)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert list((opened / "scratch").iterdir()) == []


def test_where_it_cannot_stand_the_process_goes_on_as_it_was(tmp_path: Path) -> None:
    before = Path("/proc/self/ns/mnt").readlink()
    reason = wall.stand(tmp_path / "absent", opened=tmp_path, homes=[tmp_path])
    assert reason
    assert Path("/proc/self/ns/mnt").readlink() == before
