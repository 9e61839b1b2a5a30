from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.records import Rank
from dpdoctor.rules import CannotTell
from dpdoctor.rules.uneven_batches import RULE
from tests.builders import cases, records, traced_runs
from tests.builders.cases import Case

# Of forward; backward takes twice as long and then as long as the slowest rank's.
MS_PER_ELEMENT = 0.01


def training(*elements: tuple[int, ...], slower: float = 0.0, device: str = "cpu", receiving: int = 0) -> Case:
    """Return one rank for each row: the elements of its steps, over and over; the first rank is slower by ms.

    With `receiving` there are traces, whose steps receive for that many percent of their time.
    """
    ranks = [_rank(index, elements, slower, device) for index in range(len(elements))]
    return cases.case("ddp", of=traced_runs.receiving(ranks, receiving) if receiving else ranks)


def _rank(index: int, elements: tuple[tuple[int, ...], ...], slower: float, device: str) -> Rank:
    steps = []
    for number in range(8):
        sizes = [row[number % len(row)] for row in elements]
        forward = [MS_PER_ELEMENT * size + slower * (rank == 0) for rank, size in enumerate(sizes)]
        phases = {"forward": forward[index], "backward": 3 * max(forward) - forward[index]}
        step = records.step(3 * max(forward), window=1 + number // 4, phases_ms=phases)
        steps.append(replace(step, elements=sizes[index]))
    windows = [records.window(sum(s.duration_ns for s in steps if s.window == w) / 1e6, window=w) for w in (1, 2)]
    return cases.laid_out(
        records.rank(steps, windows, index=index, world_size=len(elements), device=device, backend="gloo")
    )


FIRES = {
    "one rank": training((4000,), (1000,)),
    "in turn": training((4000, 1000), (1000, 4000)),
    "on GPUs": training((4000,), (1000,), device="cuda:0", receiving=20),
}
SILENT = {
    "all alike": training((4000,), (4000,)),
    "long and short, but together": training((4000, 1000), (4000, 1000)),
    "hardly": training((4000,), (3900,)),
    "one rank is slow by itself": training((4000,), (4000,), slower=20),
    "one device": cases.case(),
}


def test_a_window_without_a_step_that_all_ranks_have_is_left_out() -> None:
    case = training((4000,), (1000,))
    (launch,) = case.launches
    apart = []
    for rank in launch.ranks:
        others = {step.step for step in rank.steps if step.window == 2 and step.step % 2 == rank.index}
        steps = [replace(step, epoch_edge=step.step in others) for step in rank.steps]
        apart.append(replace(rank, steps=tuple(steps)))
    found = RULE.check(cases.case("ddp", of=apart))
    assert found.cost.value == pytest.approx(45 / 120, rel=1e-3)


@pytest.mark.parametrize(("device", "cost"), [("cpu", 45 / 120), ("cuda:0", 0.8 * 15 / 40)])
def test_a_step_whose_samples_could_not_be_told_is_left_out(device: str, cost: float) -> None:
    """Of every other step nobody knows how many samples entered the model."""
    case = training((4000, 0), (1000, 0), device=device, receiving=20 if device != "cpu" else 0)
    (launch,) = case.launches
    counted = [
        replace(rank, steps=tuple(replace(s, elements=0, samples_entered=s.elements // 100) for s in rank.steps))
        for rank in launch.ranks
    ]
    found = RULE.check(cases.case("ddp", of=counted))
    assert found.cost.value == pytest.approx(cost, rel=1e-3)
    assert "rank 0: 40 samples, rank 1: 10 samples" in found.evidence[0]


def test_the_mean_batch_would_save_the_difference() -> None:
    found = RULE.check(FIRES["one rank"])
    # The longest takes 40 ms forward and 80 backward, the mean 25 and 50.
    assert found.cost.value == pytest.approx(45 / 120, rel=1e-3)
    assert (found.ranks, found.status) == ((0,), "confirmed")
    assert "rank 0: 4,000 elements" in found.evidence[0]
    assert "rank 1: 1,000 elements" in found.evidence[0]


def test_a_straggler_with_larger_batches_is_no_other_fault() -> None:
    # It comes 90 of 120 ms after the other rank.
    assert FIRES["one rank"].uneven_batches.explains(0.75)
    assert not FIRES["one rank"].uneven_batches.explains(0.97)
    assert SILENT["one rank is slow by itself"].uneven_batches is None


def test_ranks_take_turns() -> None:
    found = RULE.check(FIRES["in turn"])
    assert found.ranks == ()
    assert found.cost.value == pytest.approx(45 / 120, rel=1e-3)


def test_sizes_that_explain_little_are_no_cause() -> None:
    # One rank is 40 ms slower by itself, and 30 ms for its larger batches in every other step.
    case = training((4000, 1000), (1000, 4000), slower=40)
    found = RULE.check(case)
    assert isinstance(found, CannotTell)
    assert "sizes explain 43% of the difference" in found.reason
    assert not case.uneven_batches.explains(0.1)


def test_ranks_whose_mean_batches_are_alike_wait_for_each_step_s_largest() -> None:
    # Batches make 30 ms in a step, and 1 ms on average; one rank is 2 ms slower by itself.
    case = training((4000, 1000), (1000, 4100), slower=2)
    found = RULE.check(case)
    assert (found.status, found.ranks) == ("confirmed", ())
    assert "sizes explain 94% of the difference" in found.evidence[1]
    assert case.uneven_batches.explains(0.3)


def test_equal_means_are_not_told_as_a_difference() -> None:
    said = RULE.check(FIRES["in turn"]).evidence[0]
    assert said == "All ranks train on 2,500 elements on average, but not in the same step."


def test_on_gpus_the_work_is_taken_to_grow_with_the_size() -> None:
    found = RULE.check(FIRES["on GPUs"])
    assert found.status == "inferred"
    assert found.cost.value == pytest.approx(0.8 * (1 - 2500 / 4000))
    assert isinstance(RULE.check(training((4000,), (1000,), device="cuda:0")), CannotTell)


def test_samples_are_counted_where_elements_are_not() -> None:
    case = cases.case("ddp", of=[_samples(0, 32), _samples(1, 8)])
    found = RULE.check(case)
    assert "rank 0: 32 samples" in found.evidence[0]
    assert "rank 1: 8 samples" in found.evidence[0]


def _samples(index: int, number: int) -> Rank:
    rank = _rank(index, ((3200,), (800,)), 0.0, "cpu")
    steps = [replace(step, elements=0, samples_entered=number) for step in rank.steps]
    return replace(rank, steps=tuple(steps))
