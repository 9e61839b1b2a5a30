from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dpdoctor.worker.facts.own_code import Moment, OwnCode

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
    looking = OwnCode(lambda: Moment(gap=0) if outside else None)
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


def under_a_framework(path: str) -> OwnCode:
    """Return what was seen of a script that a framework in that file trains."""
    framework: dict[str, Any] = {}
    exec(compile(FRAMEWORK, path, "exec"), framework)
    looking = OwnCode(lambda: Moment(gap=0))
    names: dict[str, Any] = {**framework, "ended": looking.step_ended, "own": script(SCRIPT)}
    exec(compile("\ndef train():\n    Trainer().fit(ended, own)", "/home/me/main.py", "exec"), names)
    looking.start()
    names["train"]()
    looking.stop()
    return looking


def test_torch_runs_no_loop() -> None:
    looking = under_a_framework("/opt/lib/site-packages/torch/optim.py")
    assert {seen.library for seen in looking.found()} == {""}


def test_what_lies_between_forward_and_update_and_what_follows_a_fetch_is_told_apart() -> None:
    now = Moment(gap=0, is_training=True)
    looking = OwnCode(lambda: now)
    looking.start()
    script(SCRIPT)()
    now = Moment(gap=1, is_preparing=True)
    script(SCRIPT, "/home/me/log.py")()
    looking.stop()
    found = {seen.line: (seen.training, seen.preparing) for seen in looking.found() if seen.line.endswith(":4")}
    assert found == {f"{TRAIN}:4": (1.0, 0.0), "/home/me/log.py:4": (0.0, 1.0)}


def test_lines_that_take_less_than_the_interpreters_switch_are_told_apart() -> None:
    source = "def slow():\n" + " begin = perf_counter()\n while perf_counter() - begin < 0.002:\n  pass\n"
    names = vars(__import__("time")).copy()
    exec(compile(f"{source}def train():\n for _ in range(40):\n  slow()\n  sleep(0.0005)", TRAIN, "exec"), names)
    found = seen(names["train"])
    assert sum(share for line, share in found.items() if line in {f"{TRAIN}:3", f"{TRAIN}:4"}) > 0.5


def test_a_few_looks_name_no_line() -> None:
    assert seen(script("import time\ndef train(): time.sleep(0.004)")) == {}


def test_the_interpreter_switches_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    seen(script(SCRIPT))
    assert sys.getswitchinterval() == before


def test_what_was_seen_in_a_gap_that_belongs_to_a_phase_does_not_count() -> None:
    now, claimed = Moment(gap=0), set[int]()
    looking = OwnCode(lambda: now, claimed)
    looking.start()
    script(SCRIPT)()
    now = Moment(gap=1)
    script(SCRIPT, "/home/me/loss.py")()
    claimed.add(1)
    looking.stop()
    assert {seen.line for seen in looking.found()} == {f"{TRAIN}:4", f"{TRAIN}:5"}
    assert sum(seen.share for seen in looking.found()) == pytest.approx(1)


FRAMEWORK = """
import time
class Bar:
    def on_step_end(self):
        time.sleep(0.03)
class Trainer:
    def fit(self, step_ended, own):
        for _ in range(2):
            step_ended()
            Bar().on_step_end()
            time.sleep(0.02)
            own()
"""


def test_a_library_that_runs_the_loop_is_named_instead_of_the_line_that_started_it() -> None:
    looking = under_a_framework("/opt/lib/site-packages/lightfast/trainer.py")
    found = {seen.line: seen.library for seen in looking.found()}
    assert found[f"{TRAIN}:4"] == "", "the user's own code inside of it is named by its line"
    assert found["/home/me/main.py:3"]
    libraries = {seen.library for seen in looking.found() if seen.library}
    assert {name.partition(" ")[2] for name in libraries} == {"(lightfast)"}
    assert {name.partition(" ")[0].rpartition(".")[2] for name in libraries} == {"on_step_end", "fit"}


def test_inside_of_a_phase_nothing_is_seen() -> None:
    assert seen(script(SCRIPT), outside=False) == {}


def test_who_never_looked_saw_nothing() -> None:
    looking = OwnCode(lambda: Moment(gap=0))
    looking.stop()
    assert looking.found() == ()


# A finalizer, run by a collection that begins as soon as an object is made, waits until the thread that is looked at
# has left `inner`.
WAITS_IN_A_COLLECTION = """
import gc, threading
from dpdoctor.worker.facts.own_code import frames
reached, leave, left = threading.Event(), threading.Event(), threading.Event()
class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        leave.set()
        left.wait(2)
def inner():
    reached.set()
    leave.wait(20)
def middle():
    inner()
def outer():
    middle()
    left.set()
def look():
    reached.wait()
    gc.disable()
    Garbage()
    gc.set_threshold(1, 1000, 1000)
    gc.enable()
    stack = frames(watched)
    leave.set()
    found.extend(frame.f_code.co_name for frame in stack)
gc.collect()
found, watched = [], threading.get_ident()
looking = threading.Thread(target=look)
looking.start()
outer()
looking.join()
print(found[found.index("inner"):], gc.isenabled())
"""


def test_a_collection_does_not_let_the_stack_change_while_it_is_looked_at() -> None:
    command = [sys.executable, "-c", WAITS_IN_A_COLLECTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['inner', 'middle', 'outer', '<module>'] True\n"), done.stderr
