from __future__ import annotations

import faulthandler
import sysconfig
import threading
from pathlib import Path

import pytest

from dpdoctor.launch import stacks
from dpdoctor.launch.stacks import Frame

DUMP = """Thread 0x00007f (most recent call first):
  File "/home/me/other.py", line 3 in work

Current thread 0x00007e (most recent call first):
  File "{library}/threading.py", line 10 in wait
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 1072 in _engine_run_backward
  File "{package}/worker/timing/hooks.py", line 5 in backward
  File "/home/me/train.py", line 9 in main
  File "/home/me/train.py", line 20 in <module>
"""


def test_the_users_frame_is_the_innermost_that_is_of_no_library(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    path.write_text(DUMP.format(library=sysconfig.get_path("stdlib"), package=stacks.PACKAGE))
    assert stacks.innermost(path) == Frame(f"{sysconfig.get_path('stdlib')}/threading.py", 10, "wait")
    assert stacks.innermost_users(path) == Frame("/home/me/train.py", 9, "main")


def test_of_a_real_dump_with_threads_the_main_one_is_told(tmp_path: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with (tmp_path / "stacks").open("w") as file:
        for _ in range(2):  # the last one counts
            faulthandler.dump_traceback(file)
    over.set()
    thread.join()
    frame = stacks.innermost(tmp_path / "stacks")
    assert frame is not None
    assert (frame.file, frame.function) == (__file__, "test_of_a_real_dump_with_threads_the_main_one_is_told")
    assert frame.is_users
    assert not frame.is_waiting


@pytest.mark.parametrize("text", [None, "", "no stack at all"])
def test_where_there_is_no_stack_nothing_is_told(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "stacks"
    if text is not None:
        path.write_text(text)
    assert stacks.innermost(path) is None
    assert stacks.innermost_users(path) is None


def test_who_stands_in_torch_or_dpdoctor_waits() -> None:
    assert Frame(f"{stacks.PACKAGE}/worker/base/agreement.py", 1, "gather").is_waiting
    assert not Frame(f"{stacks.PACKAGE}-examples/train.py", 1, "main").is_waiting
