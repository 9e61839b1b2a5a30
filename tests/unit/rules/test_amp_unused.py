from __future__ import annotations

import pytest

from dpdoctor.rules.amp_unused import RULE
from tests.builders import cases

FIRES = {"half the time": cases.case(ablations={"amp": cases.ablation(0.5)})}
SILENT = {
    "no ablation": cases.case(),
    "skipped": cases.case(ablations={"amp": cases.skipped()}),
    "slower": cases.case(ablations={"amp": cases.ablation(-0.3)}),
    "too noisy": cases.case(ablations={"amp": cases.ablation(0.2, 0.3)}),
    "little": cases.case(ablations={"amp": cases.ablation(0.03)}),
}


def test_it_says_what_to_write_and_what_that_gave() -> None:
    found = RULE.check(FIRES["half the time"])
    assert found.speedup_basis == "measured"
    assert found.speedup.value == pytest.approx(2.0)
    assert '"cpu"' in found.code
    on_gpu = cases.case(of=cases.ranks(device="cuda:0"), ablations={"amp": cases.ablation(0.5)})
    assert '"cuda"' in RULE.check(on_gpu).code
