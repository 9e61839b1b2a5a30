from __future__ import annotations

import pytest

from dpdoctor.analysis.base.weighing import Status, weigh_against
from tests.builders.cases import figure, unknown

CLAIM = figure(0.40, 0.05, "ratio")


@pytest.mark.parametrize(
    ("gained", "half", "status", "cost"),
    [
        (0.30, 0.10, "confirmed", 0.30),
        (0.10, 0.15, "refuted", 0.10),
        (-0.02, 0.01, "refuted", -0.02),  # taking it away has a cost of its own
        (0.30, 0.40, "inferred", 0.40),
        (-0.40, 0.38, "inferred", 0.40),  # with less to do a step is longer: something else changed
    ],
)
def test_an_experiment_proves_refutes_or_cannot_tell(gained: float, half: float, status: Status, cost: float) -> None:
    weighed = weigh_against(CLAIM, figure(gained, half, "ratio"))
    assert (weighed.status, weighed.value) == (status, cost)


def test_without_an_experiment_the_claim_stands_as_inferred() -> None:
    assert weigh_against(CLAIM, unknown("ratio")).status == "inferred"
