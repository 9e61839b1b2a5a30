"""A function over many files: order, errors, and a process that dies."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dpdoctor.errors import TraceError
from dpdoctor.trace.parallel import each


def text_of(path: Path) -> str:
    """Return a file's text; a file that says so cannot be read, or ends this process."""
    text = path.read_text()
    if text == "unreadable":
        raise TraceError(f"{path}: no")
    if text == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return text


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Return five files, one of them unreadable."""
    made = [tmp_path / f"{number}" for number in range(5)]
    for path in made:
        path.write_text("unreadable" if path.name == "2" else f"text {path.name}")
    return made


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_and_an_error_is_a_result(paths: list[Path], processes: int) -> None:
    found = list(each(text_of, paths, processes=processes))
    assert [item for item in found if isinstance(item, str)] == ["text 0", "text 1", "text 3", "text 4"]
    assert isinstance(found[2], TraceError)
    assert found[2].message == f"{paths[2]}: no"


@pytest.mark.parametrize("slow_s", [0, 0.3])
def test_a_process_that_is_killed_costs_one_file(
    paths: list[Path], slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is killed before the next file was handed on."""
    submit = ProcessPoolExecutor.submit

    def slow_submit(self: ProcessPoolExecutor, *args: Any) -> Any:
        time.sleep(slow_s)
        return submit(self, *args)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", slow_submit)
    paths[1].write_text("deadly")
    found = list(each(text_of, paths, processes=2))
    first, killed, *others = [str(item) for item in found]
    assert [first, *others] == ["text 0", f"{paths[2]}: no", "text 3", "text 4"]
    assert isinstance(found[1], TraceError)
    assert killed.startswith(f"{paths[1]}: ")
    assert "killed" in killed


def test_other_errors_are_not_hidden(paths: list[Path]) -> None:
    paths[4].unlink()
    with pytest.raises(FileNotFoundError):
        list(each(text_of, paths, processes=2))


def test_nothing_to_do() -> None:
    assert list(each(text_of, [], processes=2)) == []
