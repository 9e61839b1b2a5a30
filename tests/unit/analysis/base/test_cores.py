"""How fast the cores computed: between modes, between ranks, and from one half of a mode to the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpdoctor.analysis.base import cores
from dpdoctor.records import Launch
from tests.builders import records

EVEN = [200, 202, 198, 201, 199, 200, 203, 197]


def launch(*paces_us: Sequence[int | None]) -> Launch:
    """Return a launch whose ranks took so many us for the arithmetic at the end of each window."""
    ranks = []
    for index, of_rank in enumerate(paces_us):
        steps = [records.step(10, step=number, window=number) for number in range(len(of_rank))]
        windows = [
            records.window(10, window=number, round=number, core_benchmark_ns=us and us * 1000)
            for number, us in enumerate(of_rank)
        ]
        ranks.append(records.rank(steps, windows, index=index, world_size=len(paces_us)))
    return records.launch(*ranks)


def times(factor: float) -> list[int]:
    return [round(us * factor) for us in EVEN]


def test_cores_that_are_slower_beside_each_other_bound_the_speedup() -> None:
    said = cores.words({"single": launch(EVEN), "ddp": launch(times(1.5), times(1.5))})
    assert "1.50x (ddp)" in said
    assert "speedup is not to be had" in said


def test_a_machine_that_was_slower_during_the_baseline_flatters_the_others() -> None:
    said = cores.words({"single": launch(times(1.5)), "ddp": launch(EVEN, EVEN)})
    assert "1.50x (ddp)" in said
    assert "too large" in said


def test_a_pace_that_changed_half_way_is_told_of_its_mode() -> None:
    said = cores.words({"single": launch([*EVEN, *times(1.4)])})
    assert "1.40x" in said
    assert "of single" in said


@pytest.mark.parametrize(
    "launches",
    [
        {"single": launch(EVEN), "ddp": launch(EVEN, times(1.05))},
        {"single": launch([150, 300] * 4), "ddp": launch([300, 150] * 4, [150, 300] * 4)},
        {"single": launch([None] * 8), "ddp": launch(times(2), times(2))},
        {"single": launch(EVEN), "ddp": launch(times(2), [None] * 8)},
        {"single": launch([200])},
        {},
    ],
    ids=["hardly slower", "noisy", "baseline not tried", "a rank did not try", "one window", "no mode"],
)
def test_what_is_alike_or_unsure_or_unknown_is_not_told(launches: dict[str, Launch]) -> None:
    assert cores.words(launches) == ""


def test_a_rank_is_compared_with_the_mean_of_the_others() -> None:
    (window,) = launch([300], [200], [100]).windows()
    assert cores.slower(window) == pytest.approx([2.0, 1.0, 0.4])


@pytest.mark.parametrize("paces", [([300],), ([300], [None])], ids=["alone", "not tried"])
def test_a_rank_without_others_is_not_compared(paces: tuple[list[int | None], ...]) -> None:
    (window,) = launch(*paces).windows()
    assert cores.slower(window) is None
