from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.records import CALLED_AT, CALLED_BY, Rank, StepRecord
from dpdoctor.rules.gc_pauses import RULE
from tests.builders import cases, records
from tests.builders.cases import Case

FULL = "generation 2"


def pausing(every: int, seconds: float, of: Rank | None = None, detail: str = FULL) -> Case:
    """Return steps of 100 ms, a collection in every so many-th."""
    return cases.case(of=[cases.eventful(of or cases.ranks()[0], "gc", every, seconds, detail)])


def steps_of(without_ms: float, with_ms: float) -> list[StepRecord]:
    """Return the steps of two windows, of which every second one holds a collection."""
    return [records.step(ms, window=w) for w in (1, 2) for ms in (without_ms, with_ms + w, without_ms + w, with_ms)]


WINDOWS = [records.window(402, window=w) for w in (1, 2)]


def on_gpu(without_ms: float, with_ms: float) -> Rank:
    """Return a GPU's steps; every second one holds a collection."""
    steps = steps_of(without_ms, with_ms)
    windows = [records.window(2 * (without_ms + with_ms) + 2, window=w) for w in (1, 2)]
    return records.rank(steps, windows, device="cuda:0")


FIRES = {
    "in every step": pausing(1, 0.02),
    "now and then": pausing(4, 0.05),
    "hidden behind the device": pausing(2, 0.05, on_gpu(100, 100)),
}
SILENT = {"short": pausing(4, 0.002), "none": cases.case()}


def test_a_call_in_each_step_is_the_scripts_own() -> None:
    found = RULE.check(FIRES["in every step"])
    assert found.cost.value == pytest.approx(0.2)
    assert found.status == "confirmed"
    assert "gc.collect()" in found.remedy
    assert found.code is None


def test_a_call_stays_the_scripts_own_beside_many_short_collections() -> None:
    (rank,) = FIRES["in every step"].launch.ranks
    young = tuple(replace(event, duration_ns=1_000_000, detail="generation 0") for event in rank.events * 2)
    found = RULE.check(cases.case(of=[replace(rank, events=(*rank.events, *young))]))
    assert "gc.collect()" in found.remedy


@pytest.mark.parametrize(("every", "often", "remedy"), [(1, " in nearly every step", ""), (4, "", "less often")])
def test_a_call_is_told_with_its_line(every: int, often: str, remedy: str) -> None:
    found = RULE.check(pausing(every, 0.05, detail=f"generation 1{CALLED_AT}/home/me/train.py:41"))
    assert (found.line, found.code) == ("/home/me/train.py:41", None)
    assert found.cause == f"/home/me/train.py:41 calls gc.collect(){often}"
    assert remedy in found.remedy
    assert found.short_remedy == "take gc.collect() out of the training loop"


def test_a_call_of_a_librarys_is_told_with_the_line_that_calls_that() -> None:
    found = RULE.check(pausing(4, 0.05, detail=f"{FULL}{CALLED_BY}lightning{CALLED_AT}train.py:41"))
    assert (found.cause, found.line) == ("lightning calls gc.collect(), from train.py:41", "train.py:41")


def test_a_call_that_takes_little_of_what_is_collected_is_not_the_cause() -> None:
    case = pausing(4, 0.05)
    (rank,) = case.launch.ranks
    called = replace(rank.events[0], duration_ns=10_000_000, detail=f"{FULL}{CALLED_AT}train.py:41")
    found = RULE.check(cases.case(of=[replace(rank, events=(*rank.events, called))]))
    assert (found.cause, found.line) == (None, None)
    assert "gc.freeze()" in found.code


def test_a_call_between_epochs_is_not_what_holds_up_the_steps_inside() -> None:
    """The collector runs by itself in every fourth step; a call as each epoch begins takes far longer."""
    (rank,) = pausing(4, 0.05).launch.ranks
    edge = next(step for step in rank.steps if step.step % 4 == 1)
    steps = tuple(replace(step, epoch_edge=step is edge) for step in rank.steps)
    call = replace(rank.events[0], at_ns=edge.begin_ns, duration_ns=90_000_000_000, detail=f"{FULL}{CALLED_AT}a.py:9")
    found = RULE.check(cases.case(of=[replace(rank, steps=steps, events=(*rank.events, call))]))
    assert (found.cause, found.line) == (None, None)
    assert "gc.freeze()" in found.code


def test_the_automatic_collector_is_to_be_tamed() -> None:
    for case in (FIRES["now and then"], pausing(1, 0.05, detail="generation 0")):
        found = RULE.check(case)
        assert found.cause is None
        assert "gc.freeze()" in found.code


def test_a_rank_that_collects_holds_up_the_other() -> None:
    first, second = cases.ranks(2)
    found = RULE.check(cases.case("ddp", of=[first, cases.eventful(second, "gc", 2, 0.04)]))
    assert found.cost.value == pytest.approx(0.2)


def test_what_ranks_wait_for_anyway_is_not_what_a_collection_costs() -> None:
    first, second = (cases.laid_out(records.rank(steps_of(100, 100), WINDOWS, index=i, world_size=2)) for i in range(2))
    found = RULE.check(cases.case("ddp", of=[first, cases.eventful(second, "gc", 2, 0.05)]))
    assert (found.status, found.remedy) == ("refuted", None)
    assert any("are not longer than the others" in line for line in found.evidence)


def test_it_costs_no_more_than_steps_with_one_are_longer() -> None:
    """The other rank is later than the one that collects for most of 50 ms: 10 are lost in every second step."""
    first, second = (cases.laid_out(records.rank(steps_of(100, 110), WINDOWS, index=i, world_size=2)) for i in range(2))
    found = RULE.check(cases.case("ddp", of=[first, cases.eventful(second, "gc", 2, 0.05)]))
    assert (found.status, found.cost.value) == ("confirmed", pytest.approx(10 / 210, rel=0.02))
    assert found.cost.low < found.cost.value < found.cost.high


def test_a_host_that_is_ahead_of_its_gpu_proves_nothing() -> None:
    """Its device has 80 ms to do when the host is through with a window's steps of 2 ms, two of which collect 5 ms."""
    rank = records.ahead(*((100, None) for _ in range(4)))
    steps = tuple(replace(s, duration_ns=s.duration_ns + 5_000_000 * (s.step % 5 == 0)) for s in rank.steps)
    collecting = cases.eventful(replace(rank, steps=steps), "gc", 5, 0.005)
    found = RULE.check(cases.case(of=[collecting]))
    assert (found.status, found.speedup_basis) == ("inferred", "at most")


def test_on_a_gpu_steps_with_a_collection_must_be_longer() -> None:
    hidden, seen = FIRES["hidden behind the device"], pausing(2, 0.05, on_gpu(100, 150))
    assert (RULE.check(hidden).status, RULE.check(hidden).remedy) == ("refuted", None)
    assert RULE.check(seen).status == "confirmed"
    assert RULE.check(pausing(1, 0.05, on_gpu(100, 100))).status == "inferred"
