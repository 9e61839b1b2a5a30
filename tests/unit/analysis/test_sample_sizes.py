"""Samples of one mode that are larger than another's: no speedup is told."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import Figure, analyse
from dpdoctor.records import Rank
from tests.builders import records
from tests.builders.records import launch, rank, step, window


def of(*elements: int, index: int = 0, size: int = 1) -> Rank:
    """Return a rank of which each step trains on 32 samples of so many numbers together."""
    steps = [step(100, elements=number) for number in elements]
    return rank(steps, [window(100 * len(steps))], index=index, world_size=size)


def speedup(single: tuple[int, ...], ddp: tuple[int, ...]) -> Figure:
    ranks = [of(*ddp, index=index, size=2) for index in range(2)]
    run = records.run({"single": [launch(of(*single))], "ddp": [launch(*ranks, mode="ddp")]}, {"ddp": 2})
    return analyse(run).summary.modes["ddp"].speedup


@pytest.mark.parametrize(
    ("single", "ddp"),
    [
        ((3200,) * 4, (3200,) * 4),
        ((3200,) * 4, (3200, 3200, 3600, 3600)),  # sequences of somewhat different lengths
        ((3200,) * 4, (0,) * 4),  # it is not known what entered
    ],
)
def test_samples_of_about_one_size_are_compared(single: tuple[int, ...], ddp: tuple[int, ...]) -> None:
    assert speedup(single, ddp).value == pytest.approx(2)


def test_samples_that_became_larger_in_mid_run_are_not() -> None:
    found = speedup((3200, 3200, 6400, 6400), (6400,) * 4)
    assert found.value is None
    assert str(found.reason).startswith("a sample holds 200 numbers in the measured steps of ddp, and 150 in those of")
