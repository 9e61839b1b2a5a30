"""What a loader's beginnings cost on a GPU, whose host runs ahead; elsewhere: rules/test_data_starved.py."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.analysis.loader.restarts import Restarts, restarts
from dpdoctor.records import EventRecord, Rank
from tests.builders import cases
from tests.builders.records import ahead, launch, rank, step, window


def beginning(*windows_ms: tuple[float, float | None], epoch_s: float = 0.0) -> Restarts | None:
    """Return what is told of a GPU's windows, in whose edges the loader begins anew, every 16 steps."""
    return told(ahead(*windows_ms, steps_per_epoch=16, conversion=cases.conversion()), epoch_s)


def told(made: Rank, epoch_s: float = 0.0) -> Restarts | None:
    """Return what is told of a rank in whose edges the loader begins anew."""
    begun = replace(
        made,
        events=tuple(
            EventRecord(kind="iterator", at_ns=step.begin_ns, step=step.step, detail="0")
            for step in made.steps
            if step.epoch_edge
        ),
    )
    of = launch(begun)
    windows = [(of, window) for window in of.windows(with_edges=True)]
    return restarts([of], windows, cases.loader(), Figure(value=epoch_s, unit="s"))


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


def test_what_else_an_epoch_holds_is_of_the_time() -> None:
    found = beginning((200, None), (260, 102), epoch_s=0.5)
    assert found is not None
    assert found.share.value == pytest.approx(60 / 500)


def test_what_else_happens_between_two_beginnings_within_an_epoch_is_of_the_time() -> None:
    # Every fourth step of 20 ms begins it, which takes 30 ms, and something else takes 200 ms there.
    steps = [
        step(250 if place % 4 == 3 else 20, epoch_edge=place % 4 == 3, phases_ms={"data_wait": 30 * (place % 4 == 3)})
        for place in range(16)
    ]
    found = told(cases.laid_out(rank(steps, [window(16 * 20 + 4 * 230)], steps_per_epoch=100)))
    assert found is not None
    assert found.share.value == pytest.approx(30 / (4 * 20 + 230))


def test_without_a_window_of_usual_steps_nothing_is_told() -> None:
    assert beginning((260, 102), (260, 102)) is None


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_where_every_step_begins_the_loader_anew_nothing_is_told(device: str) -> None:
    edges = rank([step(20, epoch_edge=True)] * 10, [window(200)], device=device, steps_per_epoch=1)
    assert told(cases.laid_out(edges)) is None


def mostly_edges(*windows_ms: tuple[float, int]) -> Restarts | None:
    """Return what is told of a GPU's windows of ten steps, each with how long it lasts and how many of them wait 30 ms
    for a loader that begins anew.
    """
    made, windows = [], []
    for number, (wall_ms, edges) in enumerate(windows_ms, 1):
        windows.append(window(wall_ms, window=number))
        for place in range(10):
            phases_ms = {"data_wait": 30 if place < edges else 0}
            made.append(step(32, window=number, epoch_edge=place < edges, phases_ms=phases_ms))
    return told(cases.laid_out(rank(made, windows, device="cuda:0", steps_per_epoch=2)))


def test_where_most_steps_do_a_window_with_such_shows_nothing_usual() -> None:
    assert mostly_edges((400, 8), (400, 8)) is None
    found = mostly_edges((400, 8), (400, 8), (200, 0))
    assert found is not None
    assert found.seconds.value == pytest.approx((0.4 - 0.2) / 8)
