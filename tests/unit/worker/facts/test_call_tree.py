"""The tree of stacks, against counting the prefixes of each stack, and on a script whose time is planted."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dpdoctor.records import CallNode
from dpdoctor.worker.facts import call_tree
from dpdoctor.worker.facts.call_tree import CallTree, tree
from dpdoctor.worker.facts.own_code import OwnCode

TRAIN, LIBRARY = "/home/me/train.py", "/opt/lib/site-packages/lib.py"


def path(nodes: tuple[CallNode, ...], place: int) -> tuple[str, ...]:
    node = nodes[place]
    return (*(path(nodes, node.parent) if node.parent >= 0 else ()), node.where)


def compiled(source: str, file: str, **names: Any) -> dict[str, Any]:
    exec(compile(source, file, "exec"), names)
    return names


def stack_in(call: Callable[[Callable[[], None]], None]) -> tuple[tuple[str, str], ...]:
    """Return the stack at the moment in which `call` calls its argument, from the first line of /home on."""
    seen: list[tuple[tuple[str, str], ...]] = []
    call(lambda: seen.append(call_tree.stack(sys._getframe(1))))
    (found,) = seen
    return tuple(one for one in found if "/tests/" not in one[0] and "pytest" not in one[0])


def test_totals_and_own_looks_are_those_of_the_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_tree, "LEAST_SHARE", 0.0)
    draw = random.Random(3)
    for _ in range(100):
        calls = [tuple((draw.choice("abc"), "f") for _ in range(draw.randrange(1, 5))) for _ in range(40)]
        nodes = tree(Counter(calls))
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
    nodes = tree(Counter({(loop, often): 995, (loop, rare): 4, (loop,): 1}))
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
