"""Lines and calls of scripts whose time is planted; the tree of stacks also against counting the prefixes of each."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dpdoctor.records import CallNode
from dpdoctor.worker.facts import stack_sampler
from dpdoctor.worker.facts.stack_sampler import CallTree, Moment, OwnCode, call_nodes, calls_of

TRAIN, LIBRARY = "/home/me/train.py", "/opt/lib/site-packages/lib.py"
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


@pytest.mark.measured
def test_the_line_that_takes_longest_comes_first() -> None:
    found = seen(script(SCRIPT))
    assert list(found) == [f"{TRAIN}:4", f"{TRAIN}:5"]
    assert found[f"{TRAIN}:4"] == pytest.approx(0.75, abs=0.15)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.measured
def test_python_that_lets_nobody_in_is_seen_too() -> None:
    assert set(seen(script(BUSY))) & {f"{TRAIN}:5", f"{TRAIN}:6"}


@pytest.mark.measured
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


@pytest.mark.measured
def test_torch_runs_no_loop() -> None:
    looking = under_a_framework("/opt/lib/site-packages/torch/optim.py")
    assert {seen.library for seen in looking.found()} == {""}


@pytest.mark.measured
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


@pytest.mark.measured
def test_lines_that_take_less_than_the_interpreters_switch_are_told_apart() -> None:
    source = "def slow():\n" + " begin = perf_counter()\n while perf_counter() - begin < 0.004:\n  pass\n"
    names = vars(__import__("time")).copy()
    exec(compile(f"{source}def train():\n for _ in range(40):\n  slow()\n  sleep(0.0005)", TRAIN, "exec"), names)
    found = seen(names["train"])
    assert sum(share for line, share in found.items() if line in {f"{TRAIN}:3", f"{TRAIN}:4"}) > 0.5


@pytest.mark.measured
def test_a_few_looks_name_no_line() -> None:
    assert seen(script("import time\ndef train(): time.sleep(0.004)")) == {}


@pytest.mark.measured
def test_the_interpreter_switches_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    seen(script(SCRIPT))
    assert sys.getswitchinterval() == before


@pytest.mark.measured
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


@pytest.mark.measured
def test_a_library_that_runs_the_loop_is_named_instead_of_the_line_that_started_it() -> None:
    looking = under_a_framework("/opt/lib/site-packages/lightfast/trainer.py")
    found = {seen.line: seen.library for seen in looking.found()}
    assert found[f"{TRAIN}:4"] == "", "the user's own code inside of it is named by its line"
    assert found["/home/me/main.py:3"]
    libraries = {seen.library for seen in looking.found() if seen.library}
    assert {name.partition(" ")[2] for name in libraries} == {"(lightfast)"}
    assert {name.partition(" ")[0].rpartition(".")[2] for name in libraries} == {"on_step_end", "fit"}


@pytest.mark.measured
def test_inside_of_a_phase_nothing_is_seen() -> None:
    assert seen(script(SCRIPT), outside=False) == {}


@pytest.mark.measured
def test_who_never_looked_saw_nothing() -> None:
    looking = OwnCode(lambda: Moment(gap=0))
    looking.stop()
    assert looking.found() == ()


# A finalizer, run by a collection that begins as soon as an object is made, waits until the thread that is looked at
# has left `inner`.
WAITS_IN_A_COLLECTION = """
import gc, threading
from dpdoctor.worker.facts.stack_sampler import frames
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


@pytest.mark.measured
def test_a_collection_does_not_let_the_stack_change_while_it_is_looked_at() -> None:
    command = [sys.executable, "-c", WAITS_IN_A_COLLECTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['inner', 'middle', 'outer', '<module>'] True\n"), done.stderr


def path(nodes: tuple[CallNode, ...], place: int) -> tuple[str, ...]:
    node = nodes[place]
    return (*(path(nodes, node.parent) if node.parent >= 0 else ()), node.where)


def compiled(source: str, file: str, **names: Any) -> dict[str, Any]:
    exec(compile(source, file, "exec"), names)
    return names


def stack_in(call: Callable[[Callable[[], None]], None]) -> tuple[tuple[str, str], ...]:
    """Return the stack at the moment in which `call` calls its argument, from the first line of /home on."""
    seen: list[tuple[tuple[str, str], ...]] = []
    call(lambda: seen.append(calls_of(sys._getframe(1))))
    (found,) = seen
    return tuple(one for one in found if "/tests/" not in one[0] and "pytest" not in one[0])


def test_totals_and_own_looks_are_those_of_the_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler, "LEAST_SHARE", 0.0)
    draw = random.Random(3)
    for _ in range(100):
        calls = [tuple((draw.choice("abc"), "f") for _ in range(draw.randrange(1, 5))) for _ in range(40)]
        nodes = call_nodes(Counter(calls))
        names = [tuple(where for where, _ in one) for one in calls]
        for place, node in enumerate(nodes):
            ours = path(nodes, place)
            assert node.parent < place
            assert node.looks == sum(one[: len(ours)] == ours for one in names)
            assert node.own_looks == names.count(ours)
        assert {path(nodes, place) for place in range(len(nodes))} == {
            one[:depth] for one in names for depth in range(1, len(one) + 1)
        }


def test_what_is_seen_too_rarely_is_its_callers_own() -> None:
    loop, rare, often = ("t.py:1", "f"), ("t.py:2", "g"), ("t.py:3", "h")
    nodes = call_nodes(Counter({(loop, often): 995, (loop, rare): 4, (loop,): 1}))
    assert [(node.where, node.looks, node.own_looks) for node in nodes] == [("t.py:1", 1000, 5), ("t.py:3", 995, 995)]


def test_a_stack_is_the_users_lines_and_the_library_that_they_call() -> None:
    inner = compiled("def deep(look): look()", LIBRARY, __name__="lib.deep")
    library = compiled(
        "def _call_impl(look): api(look)\ndef api(look): deep(look)",
        LIBRARY,
        __name__="lib",
        **{"deep": inner["deep"]},
    )
    script = compiled(
        "def forward(look):\n    api(look)\n\ndef train(look):\n    forward(look)", TRAIN, api=library["_call_impl"]
    )
    assert stack_in(script["train"]) == (
        (f"{TRAIN}:5", "train"),
        (f"{TRAIN}:2", "forward"),
        ("lib.api", ""),
        ("lib.deep.deep", ""),
    )


def test_code_of_the_user_below_a_library_is_a_line_again() -> None:
    """A loader calls a data set, a wrapper a model."""
    library = compiled("def fetch(item, look): item(look)", LIBRARY, __name__="lib")
    script = compiled(
        "def item(look):\n    look()\n\ndef train(look):\n    fetch(item, look)", TRAIN, fetch=library["fetch"]
    )
    assert stack_in(script["train"]) == ((f"{TRAIN}:5", "train"), (f"{TRAIN}:2", "item"))


def test_what_our_conductor_does_is_not_the_scripts() -> None:
    ours = compiled(
        "def on_step(look): gather(look)",
        "/x/dpdoctor/worker/conductor.py",
        gather=compiled("def gather(look): look()", LIBRARY)["gather"],
    )
    library = compiled("def step(look): hook(look)", LIBRARY, __name__="lib", hook=ours["on_step"])
    script = compiled("def train(look): step(look)", TRAIN, step=library["step"])
    assert stack_in(script["train"]) == ()


@pytest.mark.measured
def test_time_is_found_at_the_line_that_takes_it() -> None:
    source = "def slow():\n    sleep(0.06)\n\ndef train():\n    slow()\n    sleep(0.03)\n"
    script, calls = compiled(source, TRAIN, sleep=time.sleep), CallTree()
    looking = OwnCode(lambda: None, calls=calls)
    looking.start()
    for _ in range(3):
        script["train"]()
    looking.stop()
    nodes = {node.where: node for node in calls.nodes()}
    both = nodes[f"{TRAIN}:5"].looks + nodes[f"{TRAIN}:6"].looks
    assert nodes[f"{TRAIN}:5"].looks / both == pytest.approx(2 / 3, abs=0.12)
    assert nodes[f"{TRAIN}:5"].own_looks == 0
    assert nodes[f"{TRAIN}:2"].looks == nodes[f"{TRAIN}:5"].looks
