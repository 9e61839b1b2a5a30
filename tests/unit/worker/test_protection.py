"""Which walls stand around a rank."""

from __future__ import annotations

import errno
import mmap
import os
import sysconfig
import tempfile
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from dpdoctor.spec import COPIES_IN_THE_WAY, NO_WALL, OVERLAY_FULL, OVERLAY_IN_THE_WAY, WorkerTask
from dpdoctor.worker import protection, wall, walled
from dpdoctor.worker.protection import NAMED, Protection
from dpdoctor.worker.wall import NoWallError, Wall
from tests.unit.launch.conftest import task_in

STANDS = Wall(-1, {})


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give why the kernel allows a wall not, by name; without an entry it does. None is really put up."""
    refused: dict[str, str] = {}

    def stand(*_: object, **__: object) -> Wall:
        if "overlay" in refused:
            raise NoWallError(refused["overlay"])
        return STANDS

    monkeypatch.setattr(wall, "put_up_overlay", stand)
    monkeypatch.setattr(wall, "put_up_landlock", lambda _: refused.get("landlock"))
    return refused


def put_up(directory: Path, wanted: str = "overlay", *, devices: tuple[str, ...] = ()) -> Protection:
    task: WorkerTask = task_in(directory, devices=devices)
    return protection.protect(replace(task, spec=replace(task.spec, wall=wanted)), 1)


def test_the_best_that_the_kernel_allows_stands_and_it_says_why_no_better_one(
    tmp_path: Path, kernel: dict[str, str]
) -> None:
    assert put_up(tmp_path) == Protection(by="kernel", wall=STANDS, homes=(Path("/home/me"),))
    assert (tmp_path / "rank1/overlay").is_dir()
    kernel["overlay"] = "not permitted"
    assert put_up(tmp_path) == Protection(by="landlock", reason="not permitted")
    kernel["landlock"] = "no Landlock"
    assert put_up(tmp_path) == Protection(by="python", reason="not permitted; no Landlock")


def test_nothing_better_stands_than_was_asked_for(tmp_path: Path, kernel: dict[str, str]) -> None:
    assert put_up(tmp_path, "landlock").by == "landlock"
    assert put_up(tmp_path, "none").by == "python"
    task = task_in(tmp_path)
    assert protection.protect(replace(task, spec=replace(task.spec, allow_writes=True)), 0).by == ""
    assert not kernel


@pytest.mark.parametrize(("is_loaded", "by"), [(False, "python"), (True, "kernel")])
def test_no_wall_stands_where_cuda_has_yet_to_load_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: dict[str, str], is_loaded: bool, by: str
) -> None:
    node = tmp_path / "nvidia-uvm"
    if is_loaded:
        node.touch()
    monkeypatch.setattr(protection, "UNIFIED_MEMORY", node)
    assert put_up(tmp_path / "run", devices=("0", "1")).by == by
    assert put_up(tmp_path / "run").by == "kernel"
    assert not kernel


@pytest.mark.parametrize(("wanted", "devices"), [("none", ()), ("landlock", ()), ("overlay", ("0",))])
def test_caches_are_made_on_every_way_to_do_without_the_overlay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: dict[str, str], wanted: str, devices: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(protection, "UNIFIED_MEMORY", tmp_path / "absent")
    assert put_up(tmp_path / "run", wanted, devices=devices).by != "kernel"
    assert (tmp_path / "triton").is_dir()
    assert not kernel


def test_memory_that_another_process_has_mapped_to_write_is_what_the_script_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[Path]] = {}
    monkeypatch.setattr(wall, "put_up_overlay", lambda *_, **options: asked.update(options))
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as mine,
        (Path(mine) / "served").open("w+b") as file,
        (Path(mine) / "read").open("w+b") as read,
    ):
        for each in (file, read):
            each.write(b"1")
            each.flush()
        with mmap.mmap(file.fileno(), 1), mmap.mmap(read.fileno(), 1, access=mmap.ACCESS_READ):
            put_up(tmp_path)
        assert Path(mine) in asked["lying"]
        assert [path for path in asked["opened"] if path.parent == Path(mine)] == [Path(file.name)]


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "a")


@pytest.mark.parametrize(
    ("by", "error", "hint"),
    [
        ("landlock", system(errno.EACCES), NAMED),
        ("landlock", OSError("Unable to synchronously create file (unable to open file)"), NAMED),
        ("kernel", system(errno.ENOSPC), OVERLAY_FULL),
        ("kernel", RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), OVERLAY_FULL),
        *(
            ("kernel", system(number), OVERLAY_IN_THE_WAY)
            for number in (errno.EXDEV, errno.EOVERFLOW, errno.EROFS, errno.EBUSY)
        ),
        ("kernel", system(errno.EACCES), ""),
        ("python", system(errno.EACCES), ""),
        ("landlock", ValueError("no such column"), ""),
    ],
)
def test_a_wall_is_known_by_what_it_refuses_wherever_that_was_raised(by: str, error: Exception, hint: str) -> None:
    wrapped = ValueError("no checkpoint")
    wrapped.__cause__ = error
    expected = f"; {hint}" if hint else ""
    assert Protection(by=by).hint(error) == Protection(by=by).hint(wrapped) == expected


def test_copies_may_be_why_a_file_could_not_be_written() -> None:
    """Removing it is passed over perhaps, and what follows fails."""
    wrapped = RuntimeError("no checkpoint")
    wrapped.__cause__ = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "runs")
    found = Protection(by="kernel", finds_copies=True)
    assert found.hint(wrapped) == f"; {COPIES_IN_THE_WAY}"
    assert found.hint(ValueError("a bug")) == Protection(by="kernel").hint(wrapped) == ""


def test_a_launch_that_finds_copies_may_not_write_installed_packages_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[Path]] = []
    monkeypatch.setattr(wall, "put_up_overlay", lambda *_, readable, **__: asked.append(set(readable)) or STANDS)
    (tmp_path / "own/rank1").mkdir(parents=True)
    task = task_in(tmp_path / "own")
    packages = Path(sysconfig.get_path("purelib")).resolve()
    inside = replace(task, spec=replace(task.spec, target=str(packages / "pkg/train.py"), cwd=str(packages / "pkg")))
    found = [protection.protect(each, 1) for each in (replace(task, copied=True), replace(inside, copied=True), task)]
    assert [each.finds_copies for each in found] == [True, True, False]
    libraries = {Path(os.__file__).parent.resolve(), Path(torch.__file__).parent.resolve()}
    assert asked[0] >= libraries | {packages}
    assert asked[1] == asked[0] - {packages, *packages.parents}
    assert asked[2] == set()


def test_a_command_does_not_begin_without_its_wall_and_says_why(
    tmp_path: Path, kernel: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel["overlay"] = "not permitted"
    monkeypatch.setattr(walled, "die_with_parent", lambda: None)
    assert walled.main(task_in(tmp_path), ["true"]) == 1
    assert capsys.readouterr().err == f"{NO_WALL}not permitted"
