"""What interrupts training, against all other time: on a GPU that of whole windows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.interruptions import Interruptions, interruptions
from dpdoctor.analysis.base.launch_facts import LaunchFacts
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


def told(made: Launch, epoch_s: Figure = UNKNOWN) -> Interruptions | str | None:
    """Return what is told of checkpoints, given the seconds of an epoch."""
    of = LaunchFacts.of(made)
    return interruptions(of, [(of, window) for window in of.windows()], "checkpoint", epoch_s)


def test_on_a_gpu_a_step_without_takes_what_windows_without_say() -> None:
    # Every six steps of 20 ms, of which the host needs 2.
    made = launch(saving(ahead((200, None), (380, None)), 12, 18))
    found = told(made)
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (100 + 6 * 20))


def test_on_a_gpu_without_such_a_window_it_cannot_be_told() -> None:
    made = launch(saving(ahead((300, None), (300, None)), 2, 8, 14))
    found = told(made)
    assert found == "no step without checkpoint was measured to compare with"


def beside_others(**fields: object) -> Launch:
    """Return steps of 20 ms, of which every fourth begins with a checkpoint of 100 ms and something else of 200 ms."""
    steps = [step(320 if place % 4 == 3 else 20, epoch_edge=place % 4 == 3) for place in range(16)]
    made = cases.laid_out(rank(steps, [window(16 * 20 + 4 * 300)], **fields))
    return launch(saving(made, *(found.step for found in made.steps if found.epoch_edge)))


def test_what_else_happens_meanwhile_is_of_the_time() -> None:
    found = told(beside_others())
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (4 * 20 + 300))


def test_once_per_epoch_it_is_a_share_of_that() -> None:
    # Of edges that windows hold too often or too seldom an epoch has as many as it has.
    found = told(beside_others(steps_per_epoch=4), Figure(value=0.5, unit="s"))
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / 500)


@pytest.mark.parametrize("epoch_s", [0.11, 0.18])
def test_an_epoch_holds_its_steps_at_least(epoch_s: float) -> None:
    found = told(beside_others(steps_per_epoch=4), Figure(value=epoch_s, unit="s"))
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (100 + 4 * 20))
