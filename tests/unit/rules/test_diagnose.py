"""Every rule asked about every kind of run: nothing raises, what comes out is in order and can be written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.analysis import Analysis, Figure, Finding
from dpdoctor.attribution.digesting import digest_file
from dpdoctor.rules import BY_NAME, diagnose
from dpdoctor.rules.diagnose import _bounded, _without_doubtful_gain, in_order
from tests.builders import cases, runs, traced_runs
from tests.builders.cases import Case, cases_of
from tests.builders.kineto import RECORDED

RUNS = {
    "on the CPU": runs.cpu_run,
    "on a GPU": runs.gpu_run,
    "without ranks": runs.rankless_run,
    "failed": runs.failed_run,
    "empty": runs.empty_run,
    "repeated": runs.repeated_run,
    "hostile": runs.hostile_run,
    "traces with a late rank": traced_runs.late_run,
    "a CPU's trace": traced_runs.cpu_trace,
    "hostile traces": traced_runs.hostile_traces,
    "unreadable traces": traced_runs.unreadable,
    "a profile with traces": traced_runs.traced_profile,
    **{path.name: lambda path=path: traced_runs.trace_run(digest_file(path)) for path in sorted(RECORDED.glob("*.gz"))},
}
# Whatever may be missing of a mode: no rule may lean on one of them because another one is there.
MISSING: dict[str, dict[str, Any]] = {
    "no step": {"step": cases.unknown()},
    "no phases": {"phases": {name: cases.unknown() for name in cases.phases({})}},
    "no ablations": {"ablations": {}},
    "skipped ablations": {
        "ablations": dict.fromkeys(["cached_batches", "cached_device", "no_comm", "amp"], cases.skipped())
    },
    "no loader": {"loader": None},
    "a loader of which nothing is known": {
        "loader": cases.loader(
            **dict.fromkeys(("fetch", "collate", "wait", "transfer", "epoch_start"), cases.unknown()),
            cpu_ratio=cases.unknown("ratio"),
            fetch_cv=None,
            batch_bytes=None,
        )
    },
    "no breakdown": {"breakdown": None},
    "no conversion": {"conversion": None},
    "no counters": {"counters": None},
    "no ranks": {"ranks": ()},
    "no epoch": {"epoch_s": cases.unknown()},
    "no speedup": {"speedup": cases.unknown("x")},
}
ALL_CASES = {f"{name}: {shown}": case for name in BY_NAME for shown, case in cases_of(name, "FIRES").items()}


def written(analysis: Analysis) -> bytes:
    """Return the findings as run.json holds them."""
    return rundir.encode(diagnose(analysis).summary)


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
def test_every_kind_of_run_can_be_diagnosed(make: Any) -> None:
    assert b'"findings"' in written(make())


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES)
def test_no_rule_raises_on_the_cases_of_another_with_parts_missing(case: Case) -> None:
    for fields in MISSING.values():
        assert written(cases.with_mode(case.analysis, case.name, **fields))


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES)
def test_no_rule_raises_without_records(case: Case) -> None:
    """Ranks may have died before their first milestone, or left no steps, or no launch at all."""
    run = case.analysis.run
    launches = run.modes[case.name]
    for left in (
        [],
        [replace(launch, ranks=()) for launch in launches],
        [replace(ln, ranks=tuple(replace(r, record=None) for r in ln.ranks)) for ln in launches],
        [replace(ln, ranks=tuple(replace(r, steps=()) for r in ln.ranks)) for ln in launches],
        [replace(ln, ranks=tuple(replace(r, digest=None) for r in ln.ranks)) for ln in launches],
        [replace(launch, ranks=launch.ranks[:1], samples=()) for launch in launches],
    ):
        partial = replace(run, modes={**run.modes, case.name: tuple(left)})
        assert written(replace(case.analysis, run=partial, cross_rank={}))


def test_a_steady_run_without_faults_has_no_findings() -> None:
    summary = diagnose(cases.case("ddp", world_size=2, single={}).analysis).summary
    assert [finding.title for finding in summary.findings if finding.severity != "info"] == []


def test_modes_that_trained_nothing_are_not_judged() -> None:
    summary = diagnose(runs.failed_run()).summary
    ended = {name for name, mode in summary.modes.items() if mode.status == "failed"}
    assert ended
    assert not ended & {said.mode for said in (*summary.findings, *summary.inconclusive)}


def finding(mode: str, cost: float | None, **fields: Any) -> Finding:
    """Return a finding that costs this share of the mode's step."""
    known = {"rule": "any", "severity": "warning", "status": "inferred", "title": "", "evidence": ("seen",)}
    figure = Figure(value=cost, unit="ratio", reason="nobody knows")
    return Finding(**{**known, "mode": mode, "cost": figure, "cause": None, "remedy": None, **fields})


def gaining(times: float, **fields: Any) -> Finding:
    """Return a finding whose remedy gives so many times the throughput."""
    return finding("ddp", 0.5, speedup=Figure(value=times, unit="x"), **fields)


def test_what_gives_most_comes_first_and_facts_last() -> None:
    wanted = [
        gaining(1.6),
        finding("ddp", 0.3),  # nothing is predicted: at most 1.43x
        gaining(1.1, status="confirmed"),
        gaining(1.01),
        finding("single", None),
        gaining(3.0, severity="info"),
        gaining(3.0, status="refuted"),
    ]
    assert in_order([wanted[i] for i in (4, 2, 5, 3, 6, 0, 1)]) == wanted


def test_a_cost_reaches_no_further_than_all_of_the_time() -> None:
    wide = replace(finding("ddp", 0.67), cost=Figure(value=0.67, low=0.1, high=1.24, unit="ratio"))
    assert (_bounded(wide).cost.low, _bounded(wide).cost.high) == (0.1, 1.0)
    narrow = replace(finding("ddp", 0.67), cost=Figure(value=0.67, low=0.6, high=0.7, unit="ratio"))
    assert _bounded(narrow) == narrow


@pytest.mark.parametrize(
    ("low", "kind", "is_kept"), [(0.7, "predicted", False), (1.01, "predicted", True), (0.9, "at most", True)]
)
def test_no_gain_is_predicted_that_may_be_none(low: float, kind: str, is_kept: bool) -> None:
    promised = finding("ddp", 0.05, speedup=Figure(value=1.03, low=low, high=1.7, unit="x"), speedup_basis=kind)
    assert (_without_doubtful_gain(promised).speedup is not None) == is_kept


def test_of_gains_about_alike_the_measured_one_comes_first() -> None:
    wanted = [
        gaining(1.42, speedup_basis="measured", status="confirmed"),
        gaining(1.45, status="confirmed"),
        gaining(1.48),
        gaining(1.30, speedup_basis="measured", status="confirmed"),
    ]
    assert in_order(wanted[i] for i in (3, 2, 1, 0)) == wanted


def test_a_bound_is_ordered_by_what_is_likely_not_by_the_most_that_it_may_be() -> None:
    bound = finding("ddp", 0.3, speedup=Figure(value=1.2, low=1.1, high=1.9, unit="x"), speedup_basis="at most")
    assert in_order([bound, gaining(1.5)]) == [gaining(1.5), bound]


def test_what_makes_training_wrong_stands_first_where_it_is_certain() -> None:
    wrong = finding("native", None, rule="replicas_differ", status="confirmed")
    assert in_order([gaining(1.5), wrong]) == [wrong, gaining(1.5)]
    doubtful = replace(wrong, status="inferred")
    assert in_order([gaining(1.5), doubtful]) == [gaining(1.5), doubtful]


@given(st.lists(st.floats(-0.9, 0.9), max_size=8))
def test_none_is_lost_where_a_remedy_would_make_it_slower(costs: list[float]) -> None:
    findings = [finding("ddp", cost) for cost in costs]
    assert sorted(map(id, in_order(findings))) == sorted(map(id, findings))


@pytest.mark.parametrize("status", ["ok", "inactive", "failed", "skipped"])
def test_no_rule_is_asked_about_a_mode_that_trained_nothing_of_its_own(status: str) -> None:
    starved = cases_of("data_starved", "FIRES")["by the ablation"].analysis
    found = diagnose(cases.with_mode(starved, "single", status=status)).summary.findings
    assert bool(found) == (status == "ok")
