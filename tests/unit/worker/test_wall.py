"""A real process behind a real wall; where the kernel allows none, that is said."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dpdoctor.spec import OVERLAY_FULL
from dpdoctor.worker import wall

# What kernels answer that keep users from namespaces or from overlays in them.
NOT_ALLOWED = ("not permitted", "Permission denied", "no more namespaces", "not implemented", "No such device")
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from dpdoctor.worker import wall
opened, home, cache = map(Path, sys.argv[1:])
scratch = opened / "scratch"
scratch.mkdir()
try:
    stands = wall.put_up_overlay(scratch, own=opened, opened=[cache, cache / "absent"], homes=[home, cache / "home"])
except wall.NoWallError as error:
    sys.exit(print(error))
print("stands")
(home / "old.txt").write_text("changed")
(home / "gone.txt").unlink()
(home / "made").mkdir()
subprocess.run(["sh", "-c", "echo by a child > made/new.txt; chmod 600 old.txt"], check=True, cwd=home)
print(sorted(path.name for path in home.rglob("*")))
print((home / "made/new.txt").read_text(), end="")
(opened / "kept.txt").write_text("kept")
(cache / "fetched.txt").write_text("for the next run")
(cache / "home/old.txt").write_text("changed")
(home / "again/old.txt").unlink()
(home / "again").rmdir()
(home / "again").mkdir()
(home / "again/new.txt").write_text("anew")
for each in stands.written():
    if "__pycache__" not in each.path:
        print(each.change, each.num_bytes, each.path)
print(Path.cwd(), os.access("/dev/null", os.W_OK), Path("/proc/self/stat").exists())
"""
# Takes the right to make mount namespaces away (linux/prctl.h, linux/capability.h): a user namespace gives it back.
WITHOUT_RIGHTS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def behind(opened: Path, home: Path, *before: str) -> list[str]:
    """Return what a script printed that wrote into both; skip where there is no wall."""
    command = [*before, sys.executable, "-c", SCRIPT, str(opened), str(home), str(home.parent / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=home)
    stands, *printed = done.stdout.splitlines()
    if any(word in stands for word in NOT_ALLOWED):
        pytest.skip(f"this kernel lets this user make no namespace of its own: {stands}")
    assert stands == "stands"
    return printed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    found = tmp_path / "a home, of: mine"
    found.mkdir()
    (found / "again").mkdir()
    (tmp_path / "cache/home").mkdir(parents=True)
    for path in (found / "old.txt", found / "gone.txt", found / "again/old.txt", tmp_path / "cache/home/old.txt"):
        path.write_text("mine")
    return found


@pytest.mark.parametrize("before", [(), (sys.executable, "-c", WITHOUT_RIGHTS)], ids=["as it is", "without rights"])
def test_what_is_written_behind_it_is_seen_there_and_nowhere_else(
    tmp_path: Path, home: Path, before: tuple[str, ...]
) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    was = (home / "old.txt").stat()
    seen, child, *written, rest = behind(opened, home, *before)
    assert (seen, child) == ("['again', 'made', 'new.txt', 'old.txt', 'old.txt']", "by a child")
    assert rest == f"{home} True True"
    assert written == [
        *(f"new 4 {home}/again/new.txt", f"removed 0 {home}/again/old.txt"),
        *(f"removed 0 {home}/gone.txt", f"new 11 {home}/made/new.txt", f"changed 7 {home}/old.txt"),
        f"changed 7 {tmp_path}/cache/home/old.txt",
    ]
    files = {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}
    assert files == dict.fromkeys(("old.txt", "gone.txt", "again/old.txt"), "mine")
    assert (tmp_path / "cache/home/old.txt").read_text() == "mine"
    assert (tmp_path / "cache/fetched.txt").read_text() == "for the next run"
    after = (home / "old.txt").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ino) == (was.st_mode, was.st_mtime_ns, was.st_ino)
    assert (opened / "kept.txt").read_text() == "kept"


def test_nothing_stays_mounted(tmp_path: Path, home: Path) -> None:
    opened = home / "opened"
    opened.mkdir()
    behind(opened, home)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert list((opened / "scratch").iterdir()) == []


READ = """
import sys
from pathlib import Path
from dpdoctor.worker import wall
own, home = map(Path, sys.argv[1:])
(own / "scratch").mkdir()
libraries = home / "libraries"
before = libraries.stat().st_dev
try:
    wall.put_up_overlay(own / "scratch", own=own, opened=[], homes=[home], readable=[libraries])
except wall.NoWallError as error:
    sys.exit(print(error))
print("stands")
print(libraries.stat().st_dev == before, home.stat().st_dev == before, (libraries / "one.py").read_text())
for path in (libraries / "one.py", libraries / "other.py", home / "new.txt"):
    try:
        path.write_text("theirs")
        print("written")
    except OSError as error:
        print(error.strerror)
"""


def test_what_is_only_to_be_read_lies_behind_no_overlay(tmp_path: Path, home: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (home / "libraries").mkdir()
    (home / "libraries/one.py").write_text("mine")
    command = [sys.executable, "-c", READ, str(own), str(home)]
    stands, *seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    if any(word in stands for word in NOT_ALLOWED):
        pytest.skip(f"this kernel lets this user make no namespace of its own: {stands}")
    assert (stands, seen) == ("stands", ["True False mine", *["Read-only file system"] * 2, "written"])
    assert [path.name for path in (home / "libraries").iterdir()] == ["one.py"]


def test_where_it_cannot_stand_the_process_goes_on_as_it_was(tmp_path: Path) -> None:
    before = Path("/proc/self/ns/mnt").readlink()
    with pytest.raises(wall.NoWallError):
        wall.put_up_overlay(tmp_path / "absent", own=tmp_path, opened=[], homes=[tmp_path])
    assert Path("/proc/self/ns/mnt").readlink() == before


COPIED = """
import sys
from pathlib import Path
from dpdoctor.worker import wall
from dpdoctor.worker.copies import Copy
own, home = map(Path, sys.argv[1:])
(own / "scratch").mkdir()
copy = Copy(of=home, at=own / "copy", left=("data",))
(copy.at / "data").mkdir(parents=True)
(copy.at / "old.txt").write_text("mine, copied")
try:
    wall.put_up_overlay(own / "scratch", own=own, opened=[], homes=[home], copied=[copy])
except wall.NoWallError as error:
    sys.exit(print(error))
print("stands")
print((home / "old.txt").read_text(), (home / "data/inside.txt").read_text())
for name in ("old.txt", "data/inside.txt", "new.txt"):
    (home / name).write_text("theirs")
"""


def test_what_is_copied_is_found_as_the_copy_and_the_rest_behind_the_wall(tmp_path: Path, home: Path) -> None:
    own = tmp_path / "own"
    (home / "data").mkdir()
    own.mkdir()
    (home / "data/inside.txt").write_text("mine")
    command = [sys.executable, "-c", COPIED, str(own), str(home)]
    stands, *seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    if any(word in stands for word in NOT_ALLOWED):
        pytest.skip(f"this kernel lets this user make no namespace of its own: {stands}")
    assert (stands, seen) == ("stands", ["mine, copied mine"])
    assert not (home / "new.txt").exists()
    assert [(home / name).read_text() for name in ("old.txt", "data/inside.txt")] == ["mine"] * 2
    assert [(own / "copy" / name).read_text() for name in ("old.txt", "new.txt")] == ["theirs"] * 2


# So many walls at once that each may hold a few MB, and a writer that tells nothing of it, as torch.save does not.
FILLS = """
import os, sys
from pathlib import Path
from dpdoctor.worker import wall
from dpdoctor.worker.protection import Protection
own, home = map(Path, sys.argv[1:])
(own / "scratch").mkdir()
try:
    wall.put_up_overlay(own / "scratch", own=own, opened=[], homes=[home], walls=wall._free_memory() // 2**23)
except wall.NoWallError as error:
    sys.exit(print(error))
print("stands")
said, protection = RuntimeError("unexpected pos 738200000 vs 738199888"), Protection(by="kernel", homes=(home,))
print(protection.hint(said))
try:
    with open(home / "checkpoint", "wb", buffering=0) as file:
        while True:
            file.write(bytes(100_000))
except OSError:
    print(protection.hint(said))
"""


def test_an_overlay_that_is_full_is_seen_whatever_the_writer_says(tmp_path: Path, home: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FILLS, str(own), str(home)], capture_output=True, text=True, check=True, cwd=home
    )
    stands, *hints = done.stdout.splitlines()
    if any(word in stands for word in NOT_ALLOWED):
        pytest.skip(f"this kernel lets this user make no namespace of its own: {stands}")
    assert hints == ["", f"; {OVERLAY_FULL}"]


LIES = """
import sys
from pathlib import Path
from dpdoctor.worker import wall
own, directory, file, served = map(Path, sys.argv[1:])
(own / "scratch").mkdir()
try:
    lying = [directory, file, served, directory / "absent"]
    wall.put_up_overlay(own / "scratch", own=own, opened=[served, directory / "served"], homes=[own], lying=lying)
except wall.NoWallError as error:
    sys.exit(print(error))
print("stands")
(directory / "old.txt").write_text("changed")
print((directory / "old.txt").read_text())
with file.open("r+") as shared:
    shared.write("copy")
print(file.read_text())
for path in (served, directory / "served"):
    path.write_text("exchanged")
new = Path(f"{directory}-new")
new.write_text("new")
"""


def test_what_lies_in_shared_memory_stays_as_it_was_and_what_is_new_is_written(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        tempfile.NamedTemporaryFile("w", dir="/dev/shm") as file,
        tempfile.NamedTemporaryFile("w", dir="/dev/shm") as served,
    ):
        inside = Path(directory, "served")
        for path in (Path(directory, "old.txt"), inside, Path(file.name), Path(served.name)):
            path.write_text("mine")
        command = [sys.executable, "-c", LIES, str(tmp_path), directory, file.name, served.name]
        stands, *printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        if any(word in stands for word in NOT_ALLOWED):
            pytest.skip(f"this kernel lets this user make no namespace of its own: {stands}")
        assert printed == ["changed", "copy"]
        assert inside.read_text() == Path(served.name).read_text() == "exchanged", "other processes see it"
        assert Path(directory, "old.txt").read_text() == Path(file.name).read_text() == "mine"
        new = Path(f"{directory}-new")
        assert new.read_text() == "new"
        new.unlink()


BEHIND_LANDLOCK = """
import os, subprocess, sys
from pathlib import Path
from dpdoctor.worker import wall
free, home = map(Path, sys.argv[1:])
print(wall.put_up_landlock([free, Path("/dev"), free / "absent"]))
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


def test_behind_landlock_only_what_is_free_is_written_by_whomever(tmp_path: Path) -> None:
    free, home = tmp_path / "free", tmp_path / "home"
    free.mkdir()
    home.mkdir()
    (home / "a").write_text("mine")
    command = [sys.executable, "-c", BEHIND_LANDLOCK, str(free), str(home)]
    stands, *refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    if stands != "None":
        pytest.skip(stands)
    assert refused == ["change", "make", "directory", "remove", "move", "cut", "link", "child"]
    assert [(path.name, path.read_text()) for path in home.iterdir()] == [("a", "mine")]
