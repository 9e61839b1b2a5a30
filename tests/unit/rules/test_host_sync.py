"""host_sync: calls that wait, counted with their line, timed by the idle GPU."""

from __future__ import annotations

import re

import pytest

from dpdoctor.analysis import Finding, HostSync
from dpdoctor.digest import Replay
from dpdoctor.records import Counters
from dpdoctor.rules import CannotTell
from dpdoctor.rules.host_sync import RULE
from tests.builders import cases
from tests.builders.traced_cases import case, digest

ITEM = HostSync(call="item", line="train.py:30", count=1)
PRINT = HostSync(call="format", line="train.py:31", count=3)


def counters(*syncs: HostSync) -> Counters:
    """Return what a step with these calls counts."""
    return Counters(operators=100, collectives={}, inputs=(), syncs=syncs)


def one(idle: int, *, gpu: bool = True) -> list:
    """Return one rank whose GPU idles so many of 100 ms after a wait."""
    return [digest(world_size=1, compute=100 - idle, idle_by={"sync": idle}, gpu=gpu)]


def replayed(idle: int, without: int) -> list:
    """Return the same, whose 100 ms are so many when replayed without waits."""
    of = Replay(num_steps=10, host_times=(1.0,), step_ns=(100_000_000,), without_ns=(without * 1_000_000,))
    return [digest(world_size=1, compute=100 - idle, idle_by={"sync": idle}, replay=of)]


FIRES = {
    "one line": case("single", *one(20), counters=counters(ITEM)),
    "two lines": case("single", *one(20), counters=counters(ITEM, PRINT)),
    "not counted": case("single", *one(20)),
    "more is hidden than it idles": case("single", *replayed(2, 75), counters=counters(ITEM)),
}
SILENT = {
    "only the profiler made it idle": case("single", *one(20), step=cases.figure(0.081, 0.001)),
    "short": case("single", *one(2), counters=counters(ITEM)),
    "nothing is hidden without": case("single", *replayed(20, 98), counters=counters(ITEM)),
    "on the CPU": case("single", *one(20, gpu=False), counters=counters(ITEM)),
    "on the CPU, no trace": cases.case("single", counters=counters(ITEM)),
}


def test_the_line_and_the_cost() -> None:
    found = RULE.check(FIRES["one line"])
    assert isinstance(found, Finding)
    assert (found.line, found.status, found.cost.value) == ("train.py:30", "confirmed", pytest.approx(0.2))
    assert found.cause is not None
    assert "train.py:30" in found.cause
    assert re.findall(r"\bitem\b|\d+ times?", found.cause) == ["item", "1 time"]


def test_of_two_lines_neither_is_the_cause() -> None:
    found = RULE.check(FIRES["two lines"])
    assert isinstance(found, Finding)
    assert (found.line, found.cause) == ("train.py:31", None)


def test_what_nobody_counted_is_inferred() -> None:
    found = RULE.check(FIRES["not counted"])
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("inferred", None)


@pytest.mark.parametrize(
    ("call", "waits_for", "code"),
    [
        ("item", "its values", "loss.detach()"),
        ("synchronize", "all of its work", ""),
        ("[mask]", "a shape that depends on values", "torch.where"),
        ("nonzero", "a shape that depends on values", "torch.where"),
        ("GradScaler.step", "GradScaler to know whether gradients overflowed", "bfloat16"),
    ],
)
def test_the_remedy_is_for_what_waits(call: str, waits_for: str, code: str) -> None:
    found = RULE.check(case("single", *one(20), counters=counters(HostSync(call=call, line="train.py:30", count=1))))
    assert isinstance(found, Finding)
    assert f"waits for {waits_for}:" in found.title
    assert code in (found.code or "")


def test_what_nobody_counted_is_not_said_to_be_a_value() -> None:
    found = RULE.check(case("single", *one(20), counters=counters()))
    assert isinstance(found, Finding)
    assert (found.code, found.short_remedy, "waits for it:" in found.title) == (None, None, True)


def test_it_cannot_tell_what_a_call_costs_without_a_trace() -> None:
    made = cases.case("single", of=cases.ranks(device="cuda:0"), counters=counters(ITEM))
    found = RULE.check(made)
    assert isinstance(found, CannotTell)
    assert "train.py:30" in found.reason


def test_the_idle_share_is_that_of_the_step_without_a_profiler() -> None:
    # 80 ms of work in a step of 90 ms: 10 ms idle, all of it waiting.
    found = RULE.check(case("single", *one(20), step=cases.figure(0.09, 0.001), counters=counters(ITEM)))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(1 / 9)
    assert "traced" not in found.evidence[0]


def test_all_ranks_wait_for_the_one_that_waits_longest() -> None:
    waiting = digest(compute=60, idle_by={"sync": 40})
    found = RULE.check(case("ddp", waiting, digest(1, compute=60, exposed=40), counters=counters(ITEM)))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.4)
    assert found.evidence[0].endswith(", on the rank where that is longest")


def test_what_was_replayed_is_the_cost() -> None:
    made = case("single", *replayed(2, 75), step=cases.figure(0.1, 0.001), counters=counters(ITEM))
    found = RULE.check(made)
    assert isinstance(found, Finding)
    assert (found.cost.value, found.speedup.value) == (pytest.approx(0.25), pytest.approx(4 / 3))
    assert "25%" in found.title
    assert any("75.0 ms instead of 100 ms" in line for line in found.evidence)
    assert any("idles 2.0%" in line for line in found.evidence)
