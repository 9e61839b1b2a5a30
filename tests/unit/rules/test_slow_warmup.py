from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.records import EventRecord, Rank
from dpdoctor.rules.slow_warmup import RULE
from tests.builders import cases, records
from tests.builders.cases import Case

NS = 10**9


def warming(first_s: float, second_s: float, epoch_s: float | None = 10.0, *, compiled: str | None = None) -> Case:
    """Return two steps before those that are measured; each of them compiles for as long as it is slow."""
    measured = cases.ranks()[0]
    warmup = [records.step(1000 * (0.1 + seconds), window=0) for seconds in (first_s, second_s)]
    window = records.window(0, window=0, kind="warmup")
    rank = replace(measured, steps=(*warmup, *measured.steps), windows=(window, *measured.windows))
    rank = cases.laid_out(rank)
    if compiled:
        rank = replace(rank, events=(_compile(rank, 0, first_s, "0/0"), _compile(rank, 1, second_s, compiled)))
    return cases.case(of=[rank], epoch_s=cases.unknown() if epoch_s is None else cases.figure(epoch_s))


def _compile(rank: Rank, step: int, seconds: float, number: str) -> EventRecord:
    begin_ns = rank.steps[step].begin_ns
    return EventRecord(
        kind="compile", at_ns=begin_ns, duration_ns=round(seconds * NS), step=step, detail=f"dynamo {number}"
    )


FIRES = {
    "a slow second step": warming(30, 2),
    "compiled once": warming(4, 0, compiled="1/0"),
    "compiled again and again": warming(4, 4, compiled="0/1"),
    "compiled inside of training": cases.case(of=[cases.eventful(cases.ranks()[0], "compile", 2, 0.05, "dynamo 0/3")]),
}
SILENT = {
    "only the first step, in which the script is wrapped": warming(30, 0),
    "less than a second": warming(0, 0.9, 1.0),
    "a long epoch": warming(4, 4, 1000.0, compiled="0/1"),
    "an epoch of unknown length": warming(4, 4, None),
}


def test_what_comes_once_is_told_and_no_fault() -> None:
    found = RULE.check(FIRES["a slow second step"])
    assert (found.severity, found.status, found.share_of, found.cause) == ("info", "inferred", "epoch", None)
    assert found.cost.value == pytest.approx(2 / 12)
    once = RULE.check(FIRES["compiled once"])
    assert (once.severity, once.cause, once.remedy) == ("info", "torch.compile", None)


def test_compiling_again_for_each_shape_is_a_fault() -> None:
    found = RULE.check(FIRES["compiled again and again"])
    assert found.cost.value == pytest.approx(8 / 18)
    assert (found.severity, found.status) == ("critical", "confirmed")
    assert "again for each new shape" in found.cause


def test_what_is_compiled_for_the_first_time_comes_once_wherever_it_comes() -> None:
    found = RULE.check(cases.case(of=[cases.eventful(cases.ranks()[0], "compile", 2, 0.05, "dynamo 3/0")]))
    assert (found.severity, found.code, found.cause) == ("info", None, None)
    assert "--warmup" in found.remedy


def test_what_a_rank_compiles_on_another_host_is_told_by_its_own_clock() -> None:
    far_ns = 10**15
    rank = cases.eventful(cases.ranks(2)[1], "compile", 2, 0.05, "dynamo 3/0")
    elsewhere = replace(
        rank,
        steps=tuple(replace(step, begin_ns=step.begin_ns + far_ns) for step in rank.steps),
        windows=tuple(replace(w, begin_ns=w.begin_ns + far_ns, end_ns=w.end_ns + far_ns) for w in rank.windows),
        events=tuple(replace(event, at_ns=event.at_ns + far_ns) for event in rank.events),
    )
    for of in (rank, elsewhere):
        found = RULE.check(cases.case("ddp", of=[cases.ranks(2)[0], of]))
        assert (found.severity, found.evidence[0]) == (
            "info",
            "4 compilations on one rank, 2 of them in measured steps.",
        )


def test_what_a_rank_compiles_in_warm_up_on_another_host_is_told_by_its_own_clock() -> None:
    (launch,) = warming(4, 4, compiled="0/1").launches
    (here,) = launch.ranks
    far_ns = 10**15
    elsewhere = replace(
        here,
        index=1,
        steps=tuple(replace(step, begin_ns=step.begin_ns + far_ns) for step in here.steps),
        events=tuple(replace(event, at_ns=event.at_ns + far_ns) for event in here.events),
    )
    found = RULE.check(cases.case("ddp", of=[replace(here, events=()), elsewhere], epoch_s=cases.figure(10.0)))
    assert found.cost.value == pytest.approx(8 / 18)


def test_without_compiling_nothing_is_said_of_it() -> None:
    assert not any("compilation" in line for line in RULE.check(FIRES["a slow second step"]).evidence)


def test_the_step_of_the_proof_is_dpdoctors_own() -> None:
    case = warming(30, 2)
    (rank,) = case.launch.ranks
    windows = (replace(rank.windows[0], kind="proof"), *rank.windows[1:])
    assert RULE.check(cases.case(of=[replace(rank, windows=windows)], epoch_s=cases.figure(10.0))) is None


def test_compiling_inside_of_training_costs_steps() -> None:
    found = RULE.check(FIRES["compiled inside of training"])
    assert (found.share_of, found.cost.value) == ("step", pytest.approx(0.25))
    assert found.code == "torch.compile(model, dynamic=True)"
