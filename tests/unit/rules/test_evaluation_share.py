from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.rules.evaluation_share import RULE
from dpdoctor.rules.rule import CannotTell
from tests.builders import cases
from tests.builders.cases import Case

EVALUATED = cases.conversion(rule="whole", note="iterated without gradients: an evaluation, every rank sees all of it")


def evaluating(every: int, seconds: float, world_size: int = 1, **fields: object) -> Case:
    """Return steps of 100 ms, an evaluation before every so many-th, on all ranks."""
    ranks = [cases.eventful(rank, "evaluation", every, seconds) for rank in cases.ranks(world_size, **fields)]
    return cases.case("ddp" if world_size > 1 else "single", of=ranks)


FIRES = {"often": evaluating(2, 0.1), "by every rank": evaluating(2, 0.1, 2, conversion=EVALUATED)}
SILENT = {"as after an epoch of CIFAR-10": evaluating(4, 0.03), "none": evaluating(100, 1)}


def test_its_cost_is_the_share_of_all_time() -> None:
    found = RULE.check(FIRES["often"])
    assert found.cost.value == pytest.approx(0.1 / (0.1 + 2 * 0.1))
    assert found.severity == "critical"
    assert "every 2 steps" in found.cause


def test_it_can_be_what_to_do_first() -> None:
    assert RULE.check(FIRES["often"]).short_remedy == "evaluate less often"


def test_once_per_epoch_is_said_as_the_script_has_it() -> None:
    found = RULE.check(evaluating(2, 0.1, steps_per_epoch=2))
    assert found.cause == "an evaluation once per epoch, every 2 steps"
    assert "One comes once per epoch, every 2 steps." in found.evidence


def test_one_that_did_not_come_in_each_epoch_is_not_taken_to() -> None:
    every = 6  # of eight steps
    assert RULE.check(evaluating(every, 1.0, steps_per_epoch=every)).cause.startswith("an evaluation once per epoch")
    found = RULE.check(evaluating(every, 1.0, steps_per_epoch=2))
    assert isinstance(found, CannotTell)
    assert "does not come in each epoch" in found.reason


def test_steps_that_were_counted_as_one_count_by_their_samples() -> None:
    # Eight steps of a new optimizer, and the first in which it was known to stand for the steps.
    case = evaluating(2, 0.3)
    (rank,) = case.analysis.run.modes["single"][0].ranks
    steps = [
        replace(step, samples_drawn=step.samples_drawn * (9 if place % 4 == 1 else 1))
        for place, step in enumerate(rank.steps)
    ]
    found = RULE.check(cases.case("single", of=[replace(rank, steps=tuple(steps))]))
    assert "every 2 steps" not in found.cause
    assert found.cost.value < RULE.check(case).cost.value


def test_what_an_evaluation_compiles_is_not_taken_to_come_again() -> None:
    of = cases.eventful(cases.eventful(*cases.ranks(), "evaluation", 2, 0.1), "evaluation", 8, 0.9)
    found = RULE.check(cases.case(of=[cases.eventful(of, "compile", 8, 0.9)]))
    assert found.cost.value == pytest.approx(RULE.check(FIRES["often"]).cost.value)
    found = RULE.check(cases.case(of=[cases.eventful(of, "compile", 2, 0.1)]))
    assert isinstance(found, CannotTell)
    assert "something was compiled in each evaluation" in found.reason


def test_ranks_that_all_evaluate_everything_are_told_to_share() -> None:
    found = RULE.check(FIRES["by every rank"])
    assert any("2 ranks" in text for text in found.evidence)
    assert "its part" in found.remedy
    assert "its part" not in RULE.check(FIRES["often"]).remedy
