from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpdoctor.worker.facts.own_code import OwnCode

pytestmark = pytest.mark.measured

TRAIN = "/home/me/train.py"
# Line by line of a script: it waits, it waits a little, and it computes in Python.
SCRIPT = """
import time
def train():
    time.sleep(0.06)
    time.sleep(0.02)
"""
BUSY = """
import time
def train():
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.1:
        sum(range(1000))
"""


def script(source: str, file: str = TRAIN) -> Callable[[], Any]:
    """Return the function `train` of a script."""
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    return names["train"]


def seen(train: Callable[[], Any], *, outside: bool = True) -> dict[str, float]:
    looking = OwnCode(lambda: outside, lambda: False)
    looking.start()
    train()
    looking.stop()
    return {found.line: found.share for found in looking.found()}


def test_the_line_that_takes_longest_comes_first() -> None:
    found = seen(script(SCRIPT))
    assert list(found) == [f"{TRAIN}:4", f"{TRAIN}:5"]
    assert found[f"{TRAIN}:4"] == pytest.approx(0.75, abs=0.15)
    assert sum(found.values()) == pytest.approx(1)


def test_python_that_lets_nobody_in_is_seen_too() -> None:
    assert set(seen(script(BUSY))) & {f"{TRAIN}:5", f"{TRAIN}:6"}


def test_a_library_is_seen_at_the_line_that_calls_it() -> None:
    library = script("def train(): import time; time.sleep(0.03)", "/opt/lib/site-packages/logger.py")
    names: dict[str, Any] = {"log": library}
    exec(compile("\n\ndef train(): log()", TRAIN, "exec"), names)
    assert list(seen(names["train"])) == [f"{TRAIN}:3"]


def test_what_lies_between_forward_and_update_is_told_apart() -> None:
    state = {"training": True}
    looking = OwnCode(lambda: True, lambda: state["training"])
    looking.start()
    script(SCRIPT)()
    state["training"] = False
    script(SCRIPT, "/home/me/log.py")()
    looking.stop()
    assert {found.line: found.training for found in looking.found() if found.line.endswith(":4")} == {
        f"{TRAIN}:4": 1.0,
        "/home/me/log.py:4": 0.0,
    }


def test_inside_of_a_phase_nothing_is_seen() -> None:
    assert seen(script(SCRIPT), outside=False) == {}


def test_who_never_looked_saw_nothing() -> None:
    looking = OwnCode(lambda: True, lambda: False)
    looking.stop()
    assert looking.found() == ()
