"""A real process behind Landlock; where the kernel has none, that is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from dpdoctor.worker import landlock
free, home = map(Path, sys.argv[1:])
print(landlock.stand([free, Path("/dev"), free / "absent"]))
tried = {
    "change": lambda: (home / "a").write_text("changed"),
    "make": lambda: (home / "new").write_text("new"),
    "directory": lambda: (home / "made").mkdir(),
    "remove": lambda: (home / "a").unlink(),
    "move": lambda: (home / "a").rename(free / "a"),
    "cut": lambda: os.truncate(home / "a", 0),
    "link": lambda: (home / "link").symlink_to("a"),
    "child": lambda: subprocess.run(["cp", str(home / "a"), str(home / "copy")], check=True, stderr=subprocess.DEVNULL),
    "read": lambda: (home / "a").read_text(),
    "free": lambda: (free / "made").mkdir() or (free / "x").write_text("x") and (free / "x").rename(free / "made/x"),
    "device": lambda: Path("/dev/null").write_text("x"),
}
for name, action in tried.items():
    try:
        action()
    except (OSError, subprocess.CalledProcessError):
        print(name)
"""


def test_behind_it_only_what_is_free_is_written_by_whomever(tmp_path: Path) -> None:
    free, home = tmp_path / "free", tmp_path / "home"
    free.mkdir()
    home.mkdir()
    (home / "a").write_text("mine")
    command = [sys.executable, "-c", SCRIPT, str(free), str(home)]
    stands, *refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    if stands != "None":
        pytest.skip(stands)
    assert refused == ["change", "make", "directory", "remove", "move", "cut", "link", "child"]
    assert [(path.name, path.read_text()) for path in home.iterdir()] == [("a", "mine")]
