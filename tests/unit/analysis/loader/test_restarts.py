"""What a loader's beginnings cost on a GPU, whose host runs ahead; elsewhere: rules/test_data_starved.py."""

from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis.loader.restarts import Restarts, restarts
from dpdoctor.records import EventRecord, Rank
from tests.builders import cases
from tests.builders.records import ahead, launch


def beginning(*windows_ms: tuple[float, float | None]) -> Restarts | None:
    """Return what is told of a GPU's windows, in whose edges the loader begins anew, every 16 steps."""
    made = ahead(*windows_ms, steps_per_epoch=16, conversion=cases.conversion())
    rank: Rank = dataclasses.replace(
        made,
        events=tuple(
            EventRecord(kind="iterator", at_ns=step.begin_ns, step=step.step, detail="0")
            for step in made.steps
            if step.epoch_edge
        ),
    )
    of = launch(rank)
    return restarts([of], [(of, window) for window in of.windows(with_edges=True)], cases.loader())


@pytest.mark.parametrize(
    ("wall_ms", "cost_ms"),
    [
        (260, 60),  # the device had work for 40 of the 100 ms
        (200, 0),  # ... for all of them
        (400, 100),  # something else took as long: no more than what was waited for
    ],
)
def test_a_beginning_costs_what_its_window_is_longer(wall_ms: float, cost_ms: float) -> None:
    found = beginning((200, None), (wall_ms, 102))
    assert found is not None
    assert found.seconds.value == pytest.approx(cost_ms / 1000)
    assert found.share.value == pytest.approx(cost_ms / (cost_ms + 16 * 20))


def test_without_a_window_of_usual_steps_nothing_is_told() -> None:
    assert beginning((260, 102), (260, 102)) is None
