from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.errors import BaselineError, OutputError
from dpdoctor.gate.files import locked, make_directory, write_new


def test_a_new_file_is_whole_and_alone(tmp_path: Path) -> None:
    write_new(tmp_path / "a", b"text")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"text"}


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    write_new(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"second")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"first"}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*absent/a: No such file or directory"):
        write_new(tmp_path / "absent" / "a", b"text")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot create the directory"):
        make_directory(tmp_path / "file" / "below")


def test_a_lock_is_waited_for_and_the_file_that_replaced_it_is_locked(tmp_path: Path) -> None:
    path, order = tmp_path / "a", list[str]()
    path.write_bytes(b"first")
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with locked(path):
            begun.set()
            may_end.wait(10)
            # Whoever opens the file from here on finds the new one, which nobody locks.
            order.append("first is done")
            rundir.write_whole(path, b"second")

    def second() -> None:
        begun.wait(10)
        may_end.set()
        with locked(path):
            order.append(path.read_text())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["first is done", "second"]


def test_a_file_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"cannot open .*a: No such file or directory"), locked(tmp_path / "a"):
        pass
