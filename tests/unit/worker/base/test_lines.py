from __future__ import annotations

import functools
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch

import dpdoctor
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches

PACKAGE = Path(dpdoctor.__file__).parent
TRAIN = "/home/me/train.py"
LIBRARIES = [
    functools.__file__,
    pytest.__file__,
    f"{PACKAGE}/worker/wrap.py",
    "<string>",
    "<frozen runpy>",
    "/opt/other/lib/python3.11/site-packages/torch/serialization.py",
    "/usr/lib/python3/dist-packages/torch/serialization.py",
]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Some errors were detected !\n    Line #3 (got 2)", "ValueError: Some errors were detected ! Line #3 (got 2)"),
        ("", "ValueError"),
        (
            "\n".join(["begin", *["between"] * 100, "KeyError: 'end'"]),
            "ValueError: begin \N{HORIZONTAL ELLIPSIS} KeyError: 'end'",
        ),
    ],
)
def test_of_what_was_raised_the_last_line_is_told_too(message: str, told: str) -> None:
    assert lines.raised(ValueError(message) if message else ValueError()) == told


def test_of_what_was_raised_no_line_is_told_without_end() -> None:
    for message in ("much " * 1000, "much " * 1000 + "\n" + "more " * 1000):
        assert 400 < len(lines.raised(ValueError(message))) <= 510


def passes_on(filename: str) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that stands at line 3 of that file and calls what it is given."""
    names: dict[str, Any] = {}
    exec(compile("\n\ndef pass_on(action): return action()", filename, "exec"), names)
    return names["pass_on"]


def chain(files: list[str], action: Callable[[], Any]) -> Any:
    """Call `action` from the last file, which is called from the one before it, and so on."""
    for file in reversed(files):
        action = functools.partial(passes_on(file), action)
    return action()


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_caller_is_the_users_innermost_line(library: str) -> None:
    assert chain([TRAIN, library, library], lines.caller) == f"{TRAIN}:3"


def test_the_caller_may_call_back_through_a_library() -> None:
    assert chain([TRAIN, functools.__file__, "/home/me/model.py"], lines.caller) == "/home/me/model.py:3"


def test_a_folder_whose_name_begins_like_ours_is_the_users() -> None:
    path = f"{PACKAGE}-examples/train.py"
    assert chain([TRAIN, path], lines.caller) == f"{path}:3"


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is initialised here, and torch formats no stack")
def test_torch_remembers_who_seeded_it_without_our_frames() -> None:
    patches = Patches()
    lines.keep_stacks_short(patches)
    files = [f"{PACKAGE}/worker/rank.py", "<frozen runpy>", TRAIN, f"{PACKAGE}/worker/data/loaders.py"]
    chain(files, lambda: torch.manual_seed(0))
    patches.undo()
    devices = (torch.cuda, torch.xpu, torch.mtia)
    stacks = [queued[1] for device in devices if (queued := device._lazy_seed_tracker.manual_seed_all_cb)]
    assert stacks
    for stack in stacks:
        assert [frame for frame in stack if str(PACKAGE) in frame or "runpy" in frame] == []
        assert [frame for frame in stack if f'"{TRAIN}", line 3, in pass_on' in frame]
    assert {device.traceback for device in devices} == {traceback}


def fail() -> None:
    raise ValueError("planted")


def raised(files: list[str]) -> ValueError:
    with pytest.raises(ValueError, match="planted") as caught:
        chain(files, fail)
    return caught.value


def entry_of(error: BaseException, filename: str, *, alone: bool = False) -> TracebackType:
    """Return an exception's traceback from that file on; `alone`: as if the file itself had raised it."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    assert trace is not None
    if alone:
        trace.tb_next = None
    return trace


def test_an_exception_is_placed_at_the_users_innermost_line() -> None:
    error = raised([TRAIN, functools.__file__])
    assert lines.raised_at(error.__traceback__).startswith(f"{__file__}:"), "here it is this file that raises"
    assert lines.raised_at(entry_of(error, TRAIN, alone=True)) == f"{TRAIN}:3"
    assert lines.raised_at(None) == "unknown line"


def test_a_traceback_begins_at_the_users_first_line() -> None:
    error = raised(["<frozen runpy>", f"{PACKAGE}/worker/script.py", TRAIN, functools.__file__])
    kept = lines.without_ours(entry_of(error, "<frozen runpy>"))
    assert [entry.filename for entry in traceback.extract_tb(kept)][:2] == [TRAIN, functools.__file__]


def test_a_traceback_leaves_out_what_of_ours_called_on() -> None:
    ours = f"{PACKAGE}/worker/setup.py"
    error = raised([TRAIN, ours, functools.__file__, ours])
    told = [entry.filename for entry in traceback.extract_tb(lines.without_ours(error.__traceback__))]
    assert ours not in told
    assert told.index(TRAIN) < told.index(functools.__file__)
    entry_of(error := raised([TRAIN, ours]), ours, alone=True)
    told = [entry.filename for entry in traceback.extract_tb(lines.without_ours(error.__traceback__))]
    assert told[-1] == ours, "raised there"


def test_a_traceback_of_ours_alone_is_kept() -> None:
    trace = entry_of(raised(["<frozen runpy>"]), "<frozen runpy>", alone=True)
    assert lines.without_ours(trace) is trace


def frame_of(files: list[str]) -> tuple[str, str] | None:
    """Return what is said of a stack of these files."""
    return chain(files, lambda: lines.of_users(sys._getframe(1)))


@pytest.mark.parametrize("library", [functools.__file__, "<string>", "/usr/lib/python3/dist-packages/numpy/core.py"])
def test_a_frame_of_a_library_is_of_the_users_line_that_called_it(library: str) -> None:
    assert frame_of([TRAIN, library]) == (f"{TRAIN}:3", "")


def test_a_frame_of_ours_is_nobodys() -> None:
    assert frame_of([TRAIN, f"{PACKAGE}/worker/wrap.py"]) is None


def test_the_text_of_a_line_is_found_again() -> None:
    line = lines.caller()
    assert lines.source(line) == "line = lines.caller()"


@pytest.mark.parametrize("line", ["/nowhere/train.py:3", f"{__file__}:100000", "unknown line", ""])
def test_of_a_line_that_cannot_be_read_there_is_no_text(line: str) -> None:
    assert lines.source(line) == ""


class Batch:
    """Something that the script would let go of."""


def look() -> None:
    with lines.local_variables(sys._getframe(1)) as held:
        assert "value" in held


def test_a_function_that_is_looked_into_holds_on_to_nothing() -> None:
    def train() -> object:
        value = Batch()
        reference = weakref.ref(value)
        look()
        value = None
        return reference()

    assert train() is None


def test_what_a_script_asked_for_by_locals_stays() -> None:
    def train(value: int) -> dict[str, Any]:
        mine = locals()
        look()
        return mine

    assert train(3)["value"] == 3


def test_the_variables_of_a_module_stay() -> None:
    module: dict[str, Any] = {"look": look}
    exec("value = 3\nlook()", module)
    assert module["value"] == 3
