from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.digest import NamedTime
from dpdoctor.records import Counters, InputTensor
from dpdoctor.rules import CannotTell
from dpdoctor.rules.h2d_exposed import RULE
from tests.builders import cases, traced_runs
from tests.builders.cases import Case

INPUTS = Counters(
    operators=10, collectives={}, inputs=(InputTensor(dtype="float32", shape=(8, 3), num_bytes=38_500_000),)
)


def receiving(percent: int | None, *, device: str = "cuda:0", **fields: object) -> Case:
    """Return a mode on a GPU whose trace says so much of receiving; None: there is none."""
    ranks = cases.ranks(device=device)
    traced = ranks if percent is None else traced_runs.receiving(ranks, percent)
    return cases.case(of=traced, counters=INPUTS, **fields)


def ablations(host: float, device: float, half: float = 0.005) -> dict[str, object]:
    """Return what batches on the host and on the device gain."""
    return {"cached_batches": cases.ablation(host, half), "cached_device": cases.ablation(device, half)}


FIRES = {
    "in the trace": receiving(20),
    "in both": receiving(20, ablations=ablations(0.05, 0.23), loader=cases.loader()),
    "only in the trace": receiving(20, ablations=ablations(0.05, 0.051)),
}
SILENT = {
    "on the CPU": receiving(20, device="cpu"),
    "hidden": receiving(1),
    "hidden, by both": receiving(1, ablations=ablations(0.05, 0.06)),
}


def test_the_ablations_difference_is_the_cost() -> None:
    found = RULE.check(FIRES["in both"])
    assert found.status == "confirmed"
    assert found.cost.value == pytest.approx(0.18)
    assert "pin_memory=True" in found.code
    assert "pin_memory=True" in found.short_remedy
    assert "38.5 MB" in found.evidence[2]


def test_without_ablations_the_trace_says_it() -> None:
    found = RULE.check(FIRES["in the trace"])
    assert (found.status, found.cost.value) == ("inferred", pytest.approx(0.2))


def test_what_gains_nothing_is_not_recommended() -> None:
    found = RULE.check(FIRES["only in the trace"])
    assert (found.status, found.remedy, found.code) == ("refuted", None, None)


def copying(kind: str, **fields: object) -> Case:
    """Return a mode whose trace names what its copies read from."""
    copies = (NamedTime(name=f"Memcpy HtoD ({kind} -> Device)", count=10, total_ns=10**6, device=0),)
    ranks = traced_runs.receiving(cases.ranks(device="cuda:0"), 20)
    named = [replace(rank, digest=replace(rank.digest, kernels=copies)) for rank in ranks]
    return cases.case(of=named, counters=INPUTS, loader=cases.loader(**fields))


def test_what_copies_read_from_is_what_the_trace_says() -> None:
    pageable = RULE.check(copying("Pageable", pin_memory=True))
    assert "pageable" in pageable.cause
    assert pageable.code == "x = x.pin_memory().to(device, non_blocking=True)"
    pinned = RULE.check(copying("Pinned", pin_memory=False))
    assert (pinned.cause, pinned.code) == (None, None)


def test_all_ranks_wait_for_the_one_that_receives_longest() -> None:
    ranks = cases.ranks(2, device="cuda:0")
    found = RULE.check(cases.case("ddp", of=[traced_runs.receiving(ranks, 20)[0], traced_runs.receiving(ranks, 2)[1]]))
    assert found.cost.value == pytest.approx(0.2)
    assert "on the rank where that is longest" in found.evidence[0]


def test_without_trace_and_ablations_it_cannot_tell() -> None:
    assert isinstance(RULE.check(receiving(None)), CannotTell)
