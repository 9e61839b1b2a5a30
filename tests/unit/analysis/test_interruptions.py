"""What interrupts training, against all other time: on a GPU that of whole windows.

What a loader's beginnings cost is of a GPU here, whose host runs ahead; elsewhere: rules/test_data_starved.py.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.interruptions import Interruptions, Restarts, interruptions, restarts
from dpdoctor.records import EventRecord, Launch, Rank
from tests.builders import cases
from tests.builders.records import ahead, launch, rank, step, window
from tests.builders.specs import MS


def saving(of: Rank, *steps: int) -> Rank:
    """Return the rank with a checkpoint of 100 ms in each of these steps."""
    begins = {step.step: step.begin_ns for step in of.steps}
    events = [
        EventRecord(kind="checkpoint", at_ns=begins[number], duration_ns=100 * MS, step=number) for number in steps
    ]
    return replace(of, events=tuple(events))


UNKNOWN = stats.unknown("s", "the length of an epoch is unknown")


def told_interruptions(made: Launch, epoch_s: Figure = UNKNOWN) -> Interruptions | str | None:
    """Return what is told of checkpoints, given the seconds of an epoch."""
    of = LaunchFacts.of(made)
    return interruptions(of, [(of, window) for window in of.windows()], "checkpoint", epoch_s)


def test_on_a_gpu_a_step_without_takes_what_windows_without_say() -> None:
    # Every six steps of 20 ms, of which the host needs 2.
    made = launch(saving(ahead((200, None), (380, None)), 12, 18))
    found = told_interruptions(made)
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (100 + 6 * 20))


def test_on_a_gpu_without_such_a_window_it_cannot_be_told() -> None:
    made = launch(saving(ahead((300, None), (300, None)), 2, 8, 14))
    found = told_interruptions(made)
    assert found == "no step without checkpoint was measured to compare with"


def beside_others(**fields: object) -> Launch:
    """Return steps of 20 ms, of which every fourth begins with a checkpoint of 100 ms and something else of 200 ms."""
    steps = [step(320 if place % 4 == 3 else 20, epoch_edge=place % 4 == 3) for place in range(16)]
    made = cases.laid_out(rank(steps, [window(16 * 20 + 4 * 300)], **fields))
    return launch(saving(made, *(found.step for found in made.steps if found.epoch_edge)))


def test_what_else_happens_meanwhile_is_of_the_time() -> None:
    found = told_interruptions(beside_others())
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (4 * 20 + 300))


def test_once_per_epoch_it_is_a_share_of_that() -> None:
    # Of edges that windows hold too often or too seldom an epoch has as many as it has.
    found = told_interruptions(beside_others(steps_per_epoch=4), Figure(value=0.5, unit="s"))
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / 500)


@pytest.mark.parametrize("epoch_s", [0.11, 0.18])
def test_an_epoch_holds_its_steps_at_least(epoch_s: float) -> None:
    found = told_interruptions(beside_others(steps_per_epoch=4), Figure(value=epoch_s, unit="s"))
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (100 + 4 * 20))


def beginning(*windows_ms: tuple[float, float | None], epoch_s: float = 0.0) -> Restarts | None:
    """Return what is told of a GPU's windows, in whose edges the loader begins anew, every 16 steps."""
    return told_restarts(ahead(*windows_ms, steps_per_epoch=16, conversion=cases.conversion()), epoch_s)


def told_restarts(made: Rank, epoch_s: float = 0.0) -> Restarts | None:
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
    found = told_restarts(cases.laid_out(rank(steps, [window(16 * 20 + 4 * 230)], steps_per_epoch=100)))
    assert found is not None
    assert found.share.value == pytest.approx(30 / (4 * 20 + 230))


def test_waits_that_vary_alike_in_all_steps_are_no_cost_of_a_beginning() -> None:
    # Of the steps that begin it, and of the others, every second one waits 60 ms and every second not at all.
    waits_ms = [60 * (place // 2 % 2) for place in range(16)]
    steps = [
        step(40 + wait_ms, epoch_edge=place % 2 == 0, phases_ms={"data_wait": wait_ms})
        for place, wait_ms in enumerate(waits_ms)
    ]
    found = told_restarts(cases.laid_out(rank(steps, [window(16 * 40 + sum(waits_ms))], steps_per_epoch=2)))
    assert found is not None
    assert (found.seconds.value, found.share.value) == (pytest.approx(0), pytest.approx(0))


def test_without_a_window_of_usual_steps_nothing_is_told() -> None:
    assert beginning((260, 102), (260, 102)) is None


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_where_every_step_begins_the_loader_anew_nothing_is_told(device: str) -> None:
    edges = rank([step(20, epoch_edge=True)] * 10, [window(200)], device=device, steps_per_epoch=1)
    assert told_restarts(cases.laid_out(edges)) is None


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
    return told_restarts(cases.laid_out(rank(made, windows, device="cuda:0", steps_per_epoch=2)))


def test_where_most_steps_do_a_window_with_such_shows_nothing_usual() -> None:
    assert mostly_edges((400, 8), (400, 8)) is None
    found = mostly_edges((400, 8), (400, 8), (200, 0))
    assert found is not None
    assert found.seconds.value == pytest.approx((0.4 - 0.2) / 8)
