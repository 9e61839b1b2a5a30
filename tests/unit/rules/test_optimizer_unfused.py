from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.rules.optimizer_unfused import RULE
from tests.builders import cases

ABLATIONS = {"fused_optimizer": cases.ablation(0.5)}
ADAM = replace(cases.conversion(), optimizers=("LBFGS", "AdamW"), optimizers_built=("train.py:8", "train.py:9"))

FIRES = {
    "half the time": cases.case(ablations=ABLATIONS),
    "the second of two optimizers": cases.case(ablations=ABLATIONS, conversion=ADAM),
}
SILENT = {
    "no ablation": cases.case(),
    "skipped": cases.case(ablations={"fused_optimizer": cases.skipped()}),
    "slower": cases.case(ablations={"fused_optimizer": cases.ablation(-0.3)}),
    "too noisy": cases.case(ablations={"fused_optimizer": cases.ablation(0.2, 0.3)}),
    "little": cases.case(ablations={"fused_optimizer": cases.ablation(0.03)}),
}


def test_it_says_what_to_write_where_and_what_that_gave() -> None:
    found = RULE.check(FIRES["the second of two optimizers"])
    assert (found.speedup.value, found.speedup_basis) == (pytest.approx(2.0), "measured")
    assert (found.line, found.short_remedy) == ("train.py:9", "give fused=True to AdamW")
    assert found.code == "torch.optim.AdamW(model.parameters(), ..., fused=True)"


def test_of_two_of_a_kind_the_line_of_the_first_is_told() -> None:
    two = replace(ADAM, optimizers=("Adam", "Adam"))
    assert RULE.check(cases.case(ablations=ABLATIONS, conversion=two)).line == "train.py:8"


def test_optimizers_that_are_gone_have_no_line() -> None:
    gone = replace(ADAM, optimizers_built=())
    assert RULE.check(cases.case(ablations=ABLATIONS, conversion=gone)).line is None
    unknown = RULE.check(FIRES["half the time"])
    assert (unknown.line, unknown.code, unknown.short_remedy) == (None, None, "give fused=True to the optimizer")


def test_what_the_host_sees_of_the_optimizer_is_told_without_a_gpu() -> None:
    on_gpu = cases.case(of=cases.ranks(device="cuda:0"), ablations=ABLATIONS)
    told, hidden = (RULE.check(case).evidence for case in (FIRES["half the time"], on_gpu))
    assert len(told) == len(hidden) + 1
    assert told[0].startswith("The optimizer takes ")
