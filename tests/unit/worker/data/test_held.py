from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from dpdoctor.worker.data.held import CANNOT_TELL, Held


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "items.bin").write_bytes(bytes(100_000))
    return tmp_path / "items.bin"


@pytest.mark.parametrize("mode", ["rb", "r+b", "a+b"])
def test_a_file_that_is_read_by_place(path: Path, mode: str) -> None:
    held = Held()
    with path.open(mode):
        assert held.shared() == f"{path} is open"
    assert held.shared() is None


def test_a_file_that_has_no_name_any_more() -> None:
    held = Held()
    with tempfile.TemporaryFile() as file:
        file.write(b"items")
        shared = held.shared()
    assert shared is not None
    assert "(deleted) is open" in shared


def test_a_connection() -> None:
    held = Held()
    near, far = socket.socketpair()
    with near, far:
        assert held.shared() == "a connection (socket) is open"


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_log_is_only_written(path: Path, mode: str) -> None:
    held = Held()
    with path.open(mode):
        assert held.shared() is None


def test_what_was_open_before_the_script_began(path: Path) -> None:
    with path.open("rb"):
        held = Held()
        assert held.shared() is None
        with path.open("rb"):
            assert held.shared() == f"{path} is open", "again, and this place in it is the script's"


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert Held(tmp_path / "none").shared() == CANNOT_TELL
