from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.records import Rank
from dpdoctor.rules.evaluation_share import RULE as EVALUATION
from dpdoctor.rules.inference_share import RULE
from tests.builders import cases
from tests.builders.cases import Case


def running(every: int, seconds: float, kind: str = "inference") -> Case:
    """Return steps of 100 ms, with a pass of forwards without gradients in every so many-th, which is an edge."""
    return cases.case("single", of=[with_edges(cases.eventful(rank, kind, every, seconds)) for rank in cases.ranks()])


def with_edges(rank: Rank) -> Rank:
    begins = {event.at_ns for event in rank.events}
    steps = tuple(replace(step, epoch_edge=step.begin_ns in begins) for step in rank.steps)
    return replace(rank, steps=steps)


def by_chance() -> Case:
    """Return steps in half of which a forward without gradients runs, as a matter of course."""
    return cases.case("single", of=[cases.eventful(rank, "inference", 2, 0.04) for rank in cases.ranks()])


FIRES = {
    "a rollout now and then": running(2, 0.1),
    "in every step": running(1, 0.04),
    "in half of the steps": by_chance(),
}
SILENT = {"a little": running(1, 0.005), "none": running(100, 1), "an evaluation": running(2, 0.1, "evaluation")}


def test_its_cost_is_the_share_of_all_time() -> None:
    assert RULE.check(FIRES["a rollout now and then"]).cost.value == pytest.approx(0.1 / (0.1 + 2 * 0.1))
    assert RULE.check(FIRES["in every step"]).cost.value == pytest.approx(0.4)


def test_it_is_a_fact_and_advises_nothing() -> None:
    for case in FIRES.values():
        found = RULE.check(case)
        assert (found.severity, found.status) == ("info", "inferred")
        assert (found.remedy, found.short_remedy, found.code, found.speedup) == (None, None, None, None)
        assert EVALUATION.check(case) is None


def test_it_is_not_said_that_forward_passes_have_no_gradients() -> None:
    assert RULE.check(FIRES["in every step"]).title.startswith("forward passes that no backward() follows")


def test_throughput_that_leaves_it_out_is_said_to() -> None:
    said = {name: " ".join(RULE.check(case).evidence) for name, case in FIRES.items()}
    assert "leaves out" in said["a rollout now and then"]
    assert "leaves out" not in said["in every step"]
    assert "It runs in 50% of the steps" in said["in half of the steps"]
