# The functions of `os` themselves are tested, and fixtures are asked for because of what they do.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH105, PTH106, PTH107, PTH109, PTH115, PTH116, PTH118, PTH121
# ruff: noqa: PTH123, PTH207, PTH208, PTH211, ARG001

from __future__ import annotations

import contextlib
import copy
import errno
import glob
import importlib
import io
import multiprocessing
import os
import pickle
import posix
import shutil
import sqlite3
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.overlay import disk, files
from dpdoctor.worker.overlay import territory as territory_module
from dpdoctor.worker.overlay.diverted import Diverted
from dpdoctor.worker.overlay.overlay import Overlay
from dpdoctor.worker.overlay.territory import Territory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Give the folder of a user, with two files and a directory; it is the working directory."""
    home = Path(os.path.realpath(tmp_path)) / "home"
    fill(home)
    os.chdir(home)
    return home


def fill(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    for name in ("a", "b", "data/c"):
        (home / name).write_text(name)


def snapshot(folder: Path) -> dict[str, str | None]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else None for p in folder.rglob("*")}


class Diversion:
    """The overlay over a folder, in place between `with` and its end."""

    def __init__(self, home: Path, own: Path) -> None:
        self._territory = Territory(own, [home])
        self.overlay = Overlay(own / "overlay", self._territory.is_free)
        self._patches = Patches(for_children=True)

    def __enter__(self) -> Overlay:
        self._territory.watch(self._patches)
        files.divert(self._patches, self.overlay)
        return self.overlay

    def __exit__(self, *_: object) -> None:
        self._patches.undo()
        self.overlay.discard()


@pytest.fixture
def overlay(home: Path, tmp_path: Path) -> Iterator[Overlay]:
    """Give the overlay in place over the user's folder, which must stay as it is."""
    before = snapshot(home)
    with Diversion(home, tmp_path / "own") as overlay:
        yield overlay
    os.chdir(home)
    assert snapshot(home) == before


def written(overlay: Overlay, home: Path) -> dict[str, str]:
    return {str(Path(file.path).relative_to(home)): file.change for file in overlay.written()}


def test_a_file_is_written_read_and_listed_with_its_size(overlay: Overlay, home: Path) -> None:
    assert not overlay.differences.is_any
    Path("new").write_text("12345")
    with open("a", "a") as file:
        file.write("!")
    assert file.name == "a"
    assert (Path("new").read_text(), Path(home, "a").read_text(), Path("b").read_text()) == ("12345", "a!", "b")
    assert [(Path(file.path).name, file.change, file.num_bytes) for file in overlay.written()] == [
        ("a", "changed", 2),
        ("new", "new", 5),
    ]


@pytest.mark.parametrize("mode", ["r+", "a+", "w", "x"])
def test_every_mode_of_open_says_what_the_original_says(overlay: Overlay, home: Path, mode: str) -> None:
    os.remove("a")
    expected: dict[str, type[OSError] | None] = {"r+": FileNotFoundError, "a+": None, "w": None, "x": None}
    for name, error in (("a", expected[mode]), ("data", FileExistsError if mode == "x" else IsADirectoryError)):
        if error is None:
            with open(name, mode) as file:
                file.write("again")
            assert Path(name).read_text() == "again"
        else:
            with pytest.raises(error) as caught:
                open(name, mode).close()
            assert caught.value.filename == name


@pytest.mark.parametrize(
    ("call", "number", "name"),
    [
        (lambda: Path("gone").unlink(), errno.ENOENT, "gone"),
        (lambda: os.remove("data"), errno.EISDIR, "data"),
        (lambda: os.rmdir("a"), errno.ENOTDIR, "a"),
        (lambda: os.rmdir("data"), errno.ENOTEMPTY, "data"),
        (lambda: os.mkdir("a"), errno.EEXIST, "a"),
        (lambda: os.mkdir("none/new"), errno.ENOENT, "none/new"),
        (lambda: os.mkdir("a/new"), errno.ENOTDIR, "a/new"),
        (lambda: os.symlink("a", "b"), errno.EEXIST, "b"),
        (lambda: os.rename("gone", "a"), errno.ENOENT, "gone"),
        (lambda: os.rename("a", "data"), errno.EISDIR, "a"),
        (lambda: os.rename("data", "a"), errno.ENOTDIR, "data"),
        (lambda: os.stat("removed"), errno.ENOENT, "removed"),
        (lambda: os.listdir("removed"), errno.ENOENT, "removed"),
        (lambda: os.scandir("a"), errno.ENOTDIR, "a"),
        (lambda: os.chmod("gone", 0o600), errno.ENOENT, "gone"),
        (lambda: os.stat(""), errno.ENOENT, ""),
    ],
)
def test_errors_are_those_of_the_system_and_name_the_users_path(
    overlay: Overlay, home: Path, call: Callable[[], Any], number: int, name: str
) -> None:
    Path("removed").mkdir()
    Path("removed").rmdir()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is asked for
        call()
    assert (caught.value.errno, caught.value.filename) == (number, name)


def test_listings_merge_both_trees(overlay: Overlay, home: Path) -> None:
    Path("data/new").write_text("")
    os.remove("data/c")
    os.makedirs("runs/1")
    assert sorted(os.listdir("data")) == ["new"]
    assert sorted(glob.glob("**", recursive=True)) == ["a", "b", "data", "data/new", "runs", "runs/1"]
    assert sorted(map(str, Path().rglob("*"))) == ["a", "b", "data", "data/new", "runs", "runs/1"]
    assert sorted(os.listdir(b".")) == [b"a", b"b", b"data", b"runs"]
    with os.scandir() as entries:
        found = {entry.path: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in entries}
    assert found["./data"] == found["./runs"] == (True, False, False)
    assert found["./a"] == (False, True, False)
    assert sorted(next(os.walk("."))[1]) == ["data", "runs"]


def test_a_directory_that_is_moved_takes_what_it_holds_along(overlay: Overlay, home: Path) -> None:
    Path("data/new").write_text("new")
    os.rename("data", "moved")
    Path("data").mkdir()
    assert os.listdir("data") == []
    assert {name: Path("moved", name).read_text() for name in os.listdir("moved")} == {"c": "data/c", "new": "new"}
    assert written(overlay, home) == {"data/c": "removed", "moved/c": "new", "moved/new": "new"}


def test_links_lead_into_both_trees(overlay: Overlay, home: Path) -> None:
    Path("best").write_text("best")
    os.symlink("best", "latest")
    os.symlink(home / "data", "alias")
    os.symlink("circle", "circle")
    assert (Path("latest").read_text(), Path("alias/c").read_text()) == ("best", "data/c")
    assert os.readlink("latest") == "best"
    assert Path("alias").resolve() == home / "data"
    Path("alias/c").write_text("through the link")
    assert Path("data/c").read_text() == "through the link"
    with pytest.raises(OSError, match="levels of symbolic links"):
        open("circle").close()
    os.link("best", "second")
    assert os.path.samefile("best", "second")


def test_a_directory_of_the_overlay_can_be_worked_in(overlay: Overlay, home: Path) -> None:
    os.makedirs("out/deep")
    os.chdir("out/deep")
    assert os.getcwd() == str(home / "out" / "deep")
    Path("file").write_text("deep")
    assert Path("../../out/deep/file").read_text() == "deep"
    assert Path("../../a").read_text() == "a"


def test_file_descriptors_of_directories(overlay: Overlay, home: Path) -> None:
    os.remove("data/c")
    directory = os.open("data", os.O_RDONLY)
    os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=directory))
    os.close(directory)
    assert os.listdir("data") == ["new"]


def test_the_standard_library_and_numpy(overlay: Overlay, home: Path) -> None:
    shutil.copytree("data", "copy")
    shutil.rmtree("data")
    shutil.move("copy", "data")
    np.savetxt("table", np.eye(2))
    np.eye(2).tofile("raw")
    np.memmap("map", dtype=np.uint8, mode="w+", shape=3)[:] = 1
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("whole")
    os.replace(file.name, "a")
    with tempfile.NamedTemporaryFile(dir=".") as gone:
        assert Path(gone.name).exists()
    os.chmod("b", 0o600)
    assert (np.loadtxt("table").sum(), np.fromfile("raw").sum(), np.memmap("map", dtype=np.uint8).sum()) == (2, 2, 3)
    assert (Path("data/c").read_text(), Path("a").read_text()) == ("data/c", "whole")
    assert os.stat("b").st_mode & 0o777 == 0o600
    assert written(overlay, home) == {
        "a": "changed", "b": "changed", "data/c": "changed", "map": "new", "raw": "new", "table": "new",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["a", "new", b"new"])
def test_a_file_io_is_diverted_and_one_of_a_descriptor_is_not(overlay: Overlay, home: Path, path: str | bytes) -> None:
    with io.FileIO(path, "w") as file:
        assert (file.name, file.mode, file.write(b"written")) == (path, "wb", 7)
    with io.FileIO(path) as file, open(path, "rb", buffering=0) as other:
        assert file.read() == b"written"
        assert isinstance(file, io.FileIO)
        assert isinstance(other, io.FileIO)
    with pytest.raises(FileNotFoundError):
        io.FileIO("absent")
    ours, theirs = os.pipe()
    with io.FileIO(ours), io.FileIO(theirs, "w") as end:
        assert end.write(b"1") == 1
    name = os.fsdecode(path)
    assert written(overlay, home) == {name: "new" if name == "new" else "changed"}


def test_scripts_derive_from_file_io_as_ever(overlay: Overlay, home: Path) -> None:
    class Own(io.FileIO, io.RawIOBase):
        pass

    (home / "one").write_bytes(b"x")
    with open("one", "rb", buffering=0) as plain, Own("one") as own:
        assert not isinstance(plain, Own)
        assert isinstance(own, Own)
        assert isinstance(own, io.FileIO)
        assert issubclass(type(plain), io.FileIO)
        assert not issubclass(type(plain), Own)


def test_what_stands_in_for_file_io_can_be_replaced_itself(overlay: Overlay) -> None:
    Path("new").write_text("written")
    with files._file_io(Diverted(overlay))("new") as file:
        assert isinstance(file, io.FileIO)
        assert file.read() == b"written"


def test_torch_saves_and_loads(overlay: Overlay, home: Path) -> None:
    for name in ("a", "new", "n\N{LATIN SMALL LETTER E WITH ACUTE}w"):
        torch.save(torch.ones(3), name)
        torch.save(torch.ones(3), home / "legacy", _use_new_zipfile_serialization=False)
        assert torch.load(name).sum() == torch.load(name, mmap=True).sum() == torch.load("legacy").sum() == 3
    assert isinstance(torch._C.PyTorchFileReader("a"), torch._C.PyTorchFileReader)


@pytest.mark.parametrize("path", ["a", "new"])
def test_a_file_that_memory_is_mapped_to_is_written_where_it_is_shared(overlay: Overlay, home: Path, path: str) -> None:
    torch.UntypedStorage.from_file(path, True, 8).fill_(49)
    assert Path(path).read_bytes() == b"1" * 8
    torch.from_file(path, shared=True, size=8, dtype=torch.uint8).fill_(50)
    assert torch.from_file(path, size=8, dtype=torch.uint8).fill_(51).tolist() == [51] * 8
    assert bytes(torch.UntypedStorage.from_file(path, nbytes=8, shared=False)) == b"2" * 8
    assert written(overlay, home) == {path: "new" if path == "new" else "changed"}


def test_forked_children_see_and_share_the_overlay(overlay: Overlay, home: Path) -> None:
    Path("from parent").write_text("parent")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: Path("from child").write_text(Path("from parent").read_text()))
    child.start()
    child.join()
    assert Path("from child").read_text() == "parent"
    overlay.discard()
    assert not Path("from child").exists()


def test_what_a_child_writes_first_is_seen(overlay: Overlay, home: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=lambda: Path("first").write_text("child"))
    child.start()
    child.join()
    assert Path("first").read_text() == "child"


def test_a_child_sees_what_its_parent_writes_later(overlay: Overlay, home: Path) -> None:
    Path("early").write_text("early")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def ask() -> None:
        assert Path("a").read_text() == "a"
        theirs.send("ready")
        theirs.recv()
        theirs.send((Path("a").read_text(), Path("late").exists(), sorted(os.listdir())))

    child = context.Process(target=ask)
    child.start()
    assert ours.recv() == "ready"
    Path("a").write_text("changed")
    Path("late").write_text("late")
    ours.send("go on")
    assert ours.recv() == ("changed", True, ["a", "b", "data", "early", "late"])
    child.join()


def test_two_that_write_see_each_other(overlay: Overlay, home: Path) -> None:
    Path("early").write_text("early")
    child = multiprocessing.get_context("fork").Process(target=lambda: Path("a").write_text("child"))
    child.start()
    child.join()
    assert Path("a").read_text() == "child"
    Path("b").write_text("parent")
    assert Path("b").read_text() == "parent"


def test_free_paths_are_written_as_they_are(overlay: Overlay, home: Path, tmp_path: Path) -> None:
    Path(tmp_path / "own").mkdir(exist_ok=True)
    (tmp_path / "own" / "record").write_text("record")
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "socket").write_text("")
        os.replace(Path(temporary, "socket"), "moved here")
        shutil.copy("moved here", temporary)
        assert posix.listdir(temporary) == ["moved here"]
    with open(os.devnull, "w") as nowhere:
        nowhere.write("nothing")
    assert "record" in posix.listdir(tmp_path / "own")
    assert written(overlay, home) == {"moved here": "new"}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a temporary directory that is nobody's home, with an overlay over all else."""
    temporary = Path(os.path.realpath(tmp_path)) / "temporary"
    (temporary / "exp").mkdir(parents=True)
    (temporary / "exp" / "best.pt").write_text("best")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    home = tmp_path / "home"
    fill(home)
    os.chdir(home)
    before = snapshot(temporary)
    with Diversion(home, tmp_path / "own"):
        yield temporary
    assert snapshot(temporary) == before


def test_only_what_tempfile_names_in_the_temporary_directory_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.path.realpath(tmp_path))
    territory, patches = Territory(tmp_path / "own", [Path("/home/me")]), Patches()
    territory.watch(patches)
    with tempfile.TemporaryDirectory(prefix="pymp-", suffix=".d") as named, tempfile.NamedTemporaryFile() as file:
        assert territory.is_free(os.path.realpath(f"{named}/socket"))
        assert territory.is_free(os.path.realpath(file.name))
    patches.undo()
    assert territory.is_free(os.path.realpath(tmp_path / "torchinductor_me" / "x"))
    assert territory.is_free(os.path.join(os.path.realpath(tmp_path), "own", "x"))
    assert not territory.is_free(os.path.realpath(tmp_path / "model.pt"))
    assert not territory.is_free("/home/me/x")


def test_a_directory_that_was_in_the_temporary_directory_is_moved_only_as_the_script_sees_it(temporary: Path) -> None:
    (temporary / "exp" / "log.txt").write_text("log")
    shutil.move(temporary / "exp", "results")
    assert sorted(os.listdir("results")) == ["best.pt", "log.txt"]
    assert Path("results", "best.pt").read_text() == "best"
    assert not (temporary / "exp").exists()


def test_a_directory_in_the_temporary_directory_that_is_made_anew_holds_what_is_put_there(temporary: Path) -> None:
    for number in range(2):
        shutil.rmtree(temporary / "exp")
        os.makedirs(temporary / "exp")
        (temporary / "exp" / f"{number}.pt").write_text(str(number))
        assert os.listdir(temporary / "exp") == [f"{number}.pt"]
        assert (temporary / "exp" / f"{number}.pt").read_text() == str(number)


def test_what_lies_behind_a_new_link_is_found_though_it_was_asked_for_before(overlay: Overlay, home: Path) -> None:
    assert not Path("alias/c").exists()
    os.symlink("data", "alias")
    assert Path("alias/c").read_text() == "data/c"


def test_what_a_moved_directory_holds_is_found_though_it_was_asked_for_before(overlay: Overlay, home: Path) -> None:
    assert not Path("out/c").exists()
    with tempfile.TemporaryDirectory() as made:
        os.mkdir(f"{made}/full")
        Path(made, "full", "c").write_text("c")
        os.rename(f"{made}/full", "out")
    assert Path("out/c").read_text() == "c"


def test_many_removals_at_once(home: Path, tmp_path: Path) -> None:
    names = [f"data/{number}" for number in range(500)]
    for name in names:
        Path(name).write_text("")
    with Diversion(home, tmp_path / "own"):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(os.remove, names))
        assert os.listdir("data") == ["c"]
        shutil.rmtree("data")
        os.mkdir("data")
        assert os.listdir("data") == []
    assert len(os.listdir("data")) == 501


def test_functions_that_were_replaced_are_pickled_by_name_and_copied(overlay: Overlay) -> None:
    for function in (open, os.listdir, os.scandir, os.rename, os.replace, os.open, os.getcwd, os.stat, os.remove):
        assert copy.deepcopy(function) is function
        assert pickle.loads(pickle.dumps(function)) is function


def test_every_function_is_put_back() -> None:
    before = {name: getattr(os, name) for name in dir(os)}, open, shutil._use_fd_functions, sys.dont_write_bytecode
    with Diversion(Path("/nowhere"), Path("/nowhere/own")):
        assert os.stat is not before[0]["stat"]
    after = {name: getattr(os, name) for name in dir(os)}, open, shutil._use_fd_functions, sys.dont_write_bytecode
    assert after == before


# Two links that lead somewhere, and one that leads to what is not there yet.
LINKS = {"alias": "data", "last": "a", "future": "new"}
SEEN = ("a", "b", "data", "data/c", "data/d", "new", "new/a", "new/sub", *LINKS, "alias/c", "future/a", "new/../a")
NAMES = st.sampled_from(SEEN)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "remove", "mkdir", "rmdir", "rmtree", "chdir"]), NAMES, st.just("")),
    st.tuples(st.sampled_from(["rename", "symlink"]), NAMES, NAMES),
)


def append(name: str) -> None:
    with open(name, "a") as file:
        file.write("+")


def act(home: Path, action: str, name: str, other: str) -> bool:
    """Do one thing to the working directory; return whether the system let it. Of two errors either may come first."""
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: Path(name).write_text("w"),
        "append": lambda: append(name),
        "remove": lambda: os.remove(name),
        "mkdir": lambda: os.mkdir(name),
        "rmdir": lambda: os.rmdir(name),
        "rmtree": lambda: shutil.rmtree(name),
        "chdir": lambda: os.chdir(home / name),
        "rename": lambda: os.rename(name, other),
        "symlink": lambda: os.symlink(name, other),
    }
    try:
        calls[action]()
    except OSError:
        return False
    return True


def seen(name: str) -> object:
    """Return all that can be asked about a path, None where the system refuses to answer."""

    def answer(call: Callable[[], object]) -> object:
        try:
            return call()
        except OSError:
            return None

    return (
        [ask(name) for ask in (os.path.exists, os.path.lexists, os.path.isdir, os.path.islink)],
        os.access(name, os.R_OK),
        answer(lambda: Path(name).read_text()),
        answer(lambda: sorted(os.listdir(name))),
        answer(lambda: sorted(entry.name for entry in os.scandir(name))),
        answer(lambda: stat.S_ISREG(os.stat(name).st_mode) and os.stat(name).st_size),
        answer(lambda: os.readlink(name)),
        answer(lambda: os.close(os.open(name, os.O_RDONLY))),
    )


def story(home: Path, actions: list[tuple[str, str, str]]) -> list[object]:
    """Do one thing after the other; return how each ended and what is there then, asked for in two ways."""
    told: list[object] = []
    for number, action in enumerate(actions):
        told.append(act(home, *action))
        told.append([seen(str(home / name) if number % 2 else name) for name in SEEN])
    return [*told, [(seen(name), seen(str(home / name))) for name in SEEN]]


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=12))
def test_any_sequence_gives_what_it_gives_without_an_overlay(actions: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        plain, home = Path(temporary, "plain"), Path(os.path.realpath(temporary), "home")
        for folder in (plain, home):
            fill(folder)
            for name, target in LINKS.items():
                os.symlink(target, folder / name)
        before = snapshot(home)
        os.chdir(plain)
        expected = story(plain, actions), snapshot(plain)
        os.chdir(home)
        with Diversion(home, Path(temporary, "own")) as overlay:
            assert (story(home, actions), snapshot(home)) == expected
            listed = {str(Path(file.path).relative_to(home)) for file in overlay.written()}
        assert snapshot(home) == before
        os.chdir("/")
    changed = {name for name in {*before, *expected[1]} if before.get(name, 0) != expected[1].get(name, 0)}
    changed -= {*LINKS}  # they show what others hold
    # Removing a directory is listed, what went with it is not; making an empty one (None) is not listed.
    covered = {name for name in changed if any(name == seen or name.startswith(f"{seen}/") for seen in listed)}
    assert {name for name in changed - covered if expected[1].get(name, "removed") is not None} == set()


def test_what_is_changed_by_its_descriptor_is_a_copy(overlay: Overlay, home: Path) -> None:
    before = os.stat("a")
    with open("a", "rb") as file:
        os.fchmod(file.fileno(), 0o600)
        os.chmod(file.fileno(), 0o640)
        os.utime(file.fileno(), ns=(5, 6))
        with open(f"/proc/self/fd/{file.fileno()}", "wb") as again:
            again.write(b"again")
    assert (stat.S_IMODE(os.stat("a").st_mode), Path("a").read_text()) == (0o640, "again")
    real = disk.posix.stat(str(home / "a"))
    assert (real.st_mode, real.st_mtime_ns, real.st_size) == (before.st_mode, before.st_mtime_ns, 1)
    with open("new", "w") as file:
        os.fchmod(file.fileno(), 0o600)
    assert stat.S_IMODE(os.stat("new").st_mode) == 0o600


def test_nobody_sees_a_part_of_a_copy_and_the_first_of_two_counts(
    overlay: Overlay, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, seen = disk.posix.sendfile, []

    def meanwhile(*args: Any) -> int:
        if not seen:
            seen.append(Path("a").read_text())
            monkeypatch.setattr(disk.posix, "sendfile", send)
            with open("a", "r+") as other:
                other.write("b")
        return send(*args)

    monkeypatch.setattr(disk.posix, "sendfile", meanwhile)
    with open("a", "r+") as file:
        assert (seen, file.read()) == (["a"], "b")
    assert [written.path for written in overlay.written()] == [str(home / "a")]


def test_functions_of_the_module_below_os_are_no_way_past_it(overlay: Overlay, home: Path) -> None:
    below = importlib.import_module("posix")
    descriptor = below.open("a", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"again")
    os.close(descriptor)
    below.unlink("b")
    assert (Path("a").read_text(), Path("b").exists()) == ("again", False)


def test_modules_that_were_just_written_are_imported(
    overlay: Overlay, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(home)
    Path("written_now.py").write_text("value = 1")
    Path("package_now/inner").mkdir(parents=True)
    Path("package_now/__init__.py").write_text("from package_now.inner import part\n")
    Path("package_now/inner/__init__.py").touch()
    Path("package_now/inner/part.py").write_text("value = 2")
    assert importlib.import_module("written_now").value == 1
    assert importlib.import_module("package_now").part.value == 2
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_written")
    for name in [name for name in sys.modules if name.partition(".")[0] in {"written_now", "package_now"}]:
        del sys.modules[name]


def test_databases_are_copies_however_they_are_opened(overlay: Overlay, home: Path) -> None:
    openings: list[Callable[[], sqlite3.Connection]] = [
        lambda: sqlite3.Connection("new.db"),
        lambda: sqlite3.connect("new.db"),
        lambda: sqlite3.connect(database=Path("new.db"), factory=sqlite3.Connection),
        lambda: sqlite3.connect("file:new.db?mode=rwc", uri=True),
        lambda: sqlite3.connect(f"file://{home}/new.db", uri=True),
    ]
    for number, opened in enumerate(openings, 1):
        with contextlib.closing(opened()) as database, database:
            assert isinstance(database, sqlite3.Connection)
            database.execute("create table if not exists runs (number)")
            database.execute("insert into runs values (?)", (number,))
    assert written(overlay, home) == {"new.db": "new"}
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        memory.execute("ATTACH DATABASE 'new.db' AS one")
        memory.execute("attach ? as two", ("other.db",))
        memory.execute("attach :name as three", {"name": "third.db"})
        memory.cursor().executescript("select 1; attach 'it''s.db' as four; create table four.t (a)")
        for name in ("two", "three"):
            memory.execute(f"create table {name}.t (a)")
        memory.commit()
        assert memory.execute("select count(*), 'attach' from one.runs").fetchall() == [(5, "attach")]
    assert written(overlay, home) == dict.fromkeys(("new.db", "other.db", "third.db", "it's.db"), "new")
    with contextlib.closing(sqlite3.connect("file:new.db?mode=ro", uri=True)) as read:
        assert read.execute("select count(*) from runs").fetchall() == [(5,)]
    with contextlib.closing(sqlite3.connect("file::memory:?cache=shared", uri=True)) as memory:
        assert memory.execute("select 1").fetchall() == [(1,)]


def test_compiled_writers_of_torch_and_of_what_is_imported_later_are_diverted(overlay: Overlay, home: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(on_trace_ready=torch.profiler.tensorboard_trace_handler("traces")):
            torch.ones(2).add(1)
        with torch.profiler.profile() as profiled:
            torch.ones(2).add(1)
        profiled.export_chrome_trace("a")
        assert "traceEvents" in Path("a").read_text()
        torch.jit.trace(lambda x: x + 1, torch.ones(1)).save("b")
        image = importlib.import_module("torchvision.io")
        image.write_png(torch.zeros(3, 4, 4, dtype=torch.uint8), "new.png")
        assert image.read_image("new.png").shape == (3, 4, 4)
    found = written(overlay, home)
    assert {name: found.pop(name) for name in ("a", "b", "new.png")} == {
        "a": "changed",
        "b": "changed",
        "new.png": "new",
    }
    (trace,) = found
    assert trace.startswith("traces/")


def test_in_a_directory_that_may_be_anybodys_only_what_tools_keep_there_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Path(os.path.realpath(tmp_path)) / "mine"
    for name in ("hub", "datasets", "matplotlib", "results"):
        (mine / name).mkdir(parents=True)
    for variable in ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME"):
        monkeypatch.setenv(variable, str(mine))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/")
    territory = Territory(tmp_path / "own", [Path("/home/me")])
    names = "hub/x", "datasets/x", "matplotlib/x", "results/x", "best.pt", "token"
    free = [name for name in names if territory.is_free(f"{mine}/{name}")]
    assert free == ["hub/x", "datasets/x", "matplotlib/x"]


def test_caches_that_are_missing_are_made_in_no_directory_that_may_be_anybodys_but_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    for variable in territory_module._CACHES:
        monkeypatch.delenv(variable, raising=False)
    for variable in ("TORCH_HOME", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    territory_module.make_caches()
    made = sorted(path.name for path in (tmp_path / "XDG_CACHE_HOME").iterdir())
    assert made == ["huggingface", "torch", "torch_extensions"]


def test_what_lay_in_shared_memory_before_is_protected(home: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as mine:
        Path(mine, "data.bin").write_text("mine")
        new = Path(f"{mine}-new")
        with Diversion(home, tmp_path / "own") as overlay:
            Path(mine, "data.bin").write_text("changed")
            Path(mine, "more").write_text("more")
            new.write_text("new")
            assert (Path(mine, "data.bin").read_text(), sorted(os.listdir(mine))) == ("changed", ["data.bin", "more"])
            assert {written.path for written in overlay.written()} == {f"{mine}/data.bin", f"{mine}/more"}
        assert snapshot(Path(mine)) == {"data.bin": "mine"}
        assert new.read_text() == "new"
        new.unlink()


def test_of_several_processes_that_change_a_file_one_copies_it(
    overlay: Overlay, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = multiprocessing.Value("i")
    send = disk.posix.sendfile

    def slowly(*args: Any) -> int:
        with copied.get_lock():
            copied.value += 1
        time.sleep(0.2)
        return send(*args)

    monkeypatch.setattr(disk.posix, "sendfile", slowly)
    monkeypatch.setattr(disk, "_is_cloned", lambda *_: False)

    def change() -> None:
        with open("a", "r+b") as file:
            file.read()

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=change) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert copied.value == 2, "the file, and that it ended"
    assert [written.path for written in overlay.written()] == [str(home / "a")]


def test_a_file_for_whose_copy_there_is_no_room_is_refused_with_a_way_out(
    overlay: Overlay, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs(home)
    monkeypatch.setattr(disk.posix, "fstatvfs", lambda _: os.statvfs_result((*full[:4], 0, *full[5:])))
    monkeypatch.setattr(disk, "_is_cloned", lambda *_: False)
    with pytest.raises(OSError, match=r"mode r\+.*--allow-writes.*'a'"):
        np.memmap("a", dtype=np.uint8)
    assert np.memmap("a", dtype=np.uint8, mode="r").tolist() == [ord("a")]
    assert not overlay.written()
