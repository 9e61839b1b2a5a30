"""What interrupts training, against steps without: on a GPU those of whole windows."""

from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis.base.interruptions import Interruptions, interruptions
from dpdoctor.records import EventRecord, Rank
from tests.builders.records import ahead, launch
from tests.builders.specs import MS


def saving(of: Rank, *steps: int) -> Rank:
    """Return the rank with a checkpoint of 100 ms in each of these steps."""
    begins = {step.step: step.begin_ns for step in of.steps}
    events = [
        EventRecord(kind="checkpoint", at_ns=begins[number], duration_ns=100 * MS, step=number) for number in steps
    ]
    return dataclasses.replace(of, events=tuple(events))


def test_on_a_gpu_a_step_without_takes_what_windows_without_say() -> None:
    # Every six steps of 20 ms, of which the host needs 2.
    made = launch(saving(ahead((200, None), (380, None)), 12, 18))
    found = interruptions(made, [(made, window) for window in made.windows()], "checkpoint")
    assert isinstance(found, Interruptions)
    assert found.share.value == pytest.approx(100 / (100 + 6 * 20))


def test_on_a_gpu_without_such_a_window_it_cannot_be_told() -> None:
    made = launch(saving(ahead((300, None), (300, None)), 2, 8, 14))
    found = interruptions(made, [(made, window) for window in made.windows()], "checkpoint")
    assert found == "no step without checkpoint was measured to compare with"
