from __future__ import annotations

import pytest

from dpdoctor.rules import CannotTell
from dpdoctor.rules.checkpoint_share import RULE
from tests.builders import cases
from tests.builders.cases import Case


def saving(every: int, seconds: float, **fields: object) -> Case:
    """Return steps of 100 ms, a checkpoint before every so many-th, the first of two ranks writing it."""
    first, second = cases.ranks(2, **fields)
    return cases.case("ddp", of=[cases.eventful(first, "checkpoint", every, seconds), second])


FIRES = {"every second step": saving(2, 0.05)}
SILENT = {"none, and an epoch was seen": saving(100, 0.05, steps_per_epoch=8), "short ones": saving(2, 0.005)}


def test_its_cost_is_the_share_of_all_time() -> None:
    found = RULE.check(FIRES["every second step"])
    assert found.share_of == "epoch"
    assert found.cost.value == pytest.approx(0.05 / (0.05 + 2 * 0.1))
    assert found.speedup.value == pytest.approx(1 + 0.05 / 0.2)


def test_what_comes_at_the_end_of_an_epoch_that_was_not_reached_is_not_judged() -> None:
    found = RULE.check(saving(100, 0.05, steps_per_epoch=5000))
    assert isinstance(found, CannotTell)
    assert "8 of 5,000 steps" in found.reason


def test_one_checkpoint_comes_once_an_epoch() -> None:
    found = RULE.check(saving(8, 1.0, steps_per_epoch=20))
    assert found.cost.value == pytest.approx(1 / (1 + 20 * 0.1))
    assert isinstance(RULE.check(saving(8, 1.0)), CannotTell)
