"""parallelism_not_worth_it: the whole interval of the speedup below 1."""

from __future__ import annotations

import re

import pytest

from dpdoctor.analysis import WATERFALL_TERMS, Conversion, Finding, Waterfall
from dpdoctor.records import TENSOR_PARALLEL, Strategy
from dpdoctor.rules.parallelism_not_worth_it import RULE, TERMS
from tests.builders.cases import OWN, case, figure, unknown


def lost(**terms: float) -> Waterfall:
    """Return a waterfall with these terms in seconds, the others 0."""
    known = {name: figure(terms.get(name, 0.0)) for name in WATERFALL_TERMS}
    return Waterfall(ideal=figure(0.05), measured=figure(0.1), terms=known, sources={})


SINGLE = {"throughput": figure(200, 1, "samples/s")}
SLOWER = {"speedup": figure(0.8, 0.05, "x"), "throughput": figure(160, 1, "samples/s")}
FIRES = {
    "slower": case("ddp", world_size=2, single=SINGLE, **SLOWER),
    "slower, and why": case(
        "ddp", world_size=2, single=SINGLE, waterfall=lost(transfer=0.045, slower_ranks=0.005), **SLOWER
    ),
    "slower, on the same samples": case(
        "ddp",
        world_size=2,
        single=SINGLE,
        waterfall=lost(transfer=0.045),
        conversion=Conversion(same_samples=True),
        **SLOWER,
    ),
    "slower, for two reasons": case("ddp", world_size=2, waterfall=lost(transfer=0.03, slower_ranks=0.02), **SLOWER),
}
SILENT = {
    "faster": case("ddp", world_size=2, speedup=figure(1.7, 0.05, "x")),
    "alike": case("ddp", world_size=2, speedup=figure(0.98, 0.05, "x")),
    "hardly slower": case("ddp", world_size=2, speedup=figure(0.97, 0.01, "x")),
    "no baseline": case("ddp", world_size=2, speedup=unknown("x")),
    "one device": case("single", speedup=figure(0.5, 0.1, "x")),
}


def test_cost_gain_and_cause() -> None:
    found = RULE.check(FIRES["slower, and why"])
    assert isinstance(found, Finding)
    assert (found.cost.value, found.cost.low, found.cost.high) == pytest.approx((0.2, 0.15, 0.25))
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1.25)
    assert found.cause == TERMS["transfer"]
    assert any(
        re.findall(r"\d+ (?:devices|samples/s)", text) == ["2 devices", "160 samples/s", "200 samples/s"]
        for text in found.evidence
    )


def test_no_larger_batch_helps_ranks_that_train_on_the_same_samples() -> None:
    other, same = (RULE.check(FIRES[name]) for name in ("slower, and why", "slower, on the same samples"))
    assert isinstance(other, Finding)
    assert isinstance(same, Finding)
    assert "larger batch" in other.remedy
    assert "larger batch" not in same.remedy
    assert "samples of its own" in same.remedy
    assert same.cause is not None
    assert "same samples" in same.cause


def test_ranks_that_split_a_model_are_not_asked_for_samples_of_their_own() -> None:
    split = Conversion(same_samples=True, strategies=(Strategy(name=TENSOR_PARALLEL),))
    found = RULE.check(case("native", world_size=2, single=SINGLE, native=OWN, conversion=split, **SLOWER))
    assert isinstance(found, Finding)
    assert "samples of its own" not in found.remedy


def test_of_two_reasons_neither_is_the_cause() -> None:
    found = RULE.check(FIRES["slower, for two reasons"])
    assert isinstance(found, Finding)
    assert found.cause is None
    transfer, peers = found.evidence[1:]
    assert TERMS["transfer"] in transfer
    assert "30.0 ms" in transfer
    assert TERMS["slower_ranks"] in peers
    assert "20.0 ms" in peers
