"""How runs differ, in each figure, count and finding; and how two figures do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, Figure, Finding, Inconclusive, analyse
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.comparison import Comparison, Fact, FindingComparison, compare, compared, fact
from dpdoctor.records import Check, Collective, Counters, HostSync, InputTensor
from tests.builders import records, runs, traced_runs
from tests.builders.diagnosed_runs import figure, finding, with_modes
from tests.builders.runs_to_compare import even, with_header


def verdicts(found: Comparison) -> set[str]:
    """Return every verdict on every figure."""
    rows = [
        row
        for mode in found.modes.values()
        for kind in (mode.figures, mode.phases, mode.budget, mode.ablations)
        for row in kind.values()
    ]
    return {change.verdict for row in rows for change in row.changes}


def facts(found: Comparison) -> dict[str, Fact]:
    return {fact.name: fact for fact in found.environment}


@pytest.mark.parametrize("run", [runs.cpu_run, runs.gpu_run, runs.repeated_run, traced_runs.late_run])
def test_of_a_run_and_itself_nothing_differs(run: object) -> None:
    found = compare([run(), run()])
    assert verdicts(found) <= {"alike", "unclear", "unknown"}
    assert not any(any(fact.differs) for fact in found.environment)
    assert not any(any(fact.differs) for mode in found.modes.values() for fact in mode.counters)


def test_a_step_of_half_the_time_is_twice_the_throughput() -> None:
    mode = compare([even(100), even(50)]).modes["single"]
    (throughput,), (step,) = mode.figures["throughput"].changes, mode.figures["step"].changes
    assert (throughput.ratio.value, throughput.verdict) == (pytest.approx(2), "more")
    assert (step.ratio.value, step.verdict) == (pytest.approx(0.5), "less")
    assert step.difference.value == pytest.approx(-0.050)
    (forward,) = mode.phases["forward"].changes
    assert (forward.difference.value, forward.verdict) == (pytest.approx(-0.050), "less")


def test_steady_figures_with_edges_are_compared_with_none_without() -> None:
    without, with_them = (
        analyse(records.run({"single": [records.launch(records.ahead(*windows_ms, steps_per_epoch=10))]}))
        for windows_ms in (((200, None), (300, 102)), ((300, 102), (300, 102)))
    )
    mode = compare([without, with_them]).modes["single"]
    assert {name for name, row in mode.figures.items() if row.figures[1].value is None} >= {"throughput", "step"}
    assert "longer epochs, or fewer --steps" in str(mode.figures["step"].figures[1].reason)
    assert {row.figures[1].value for row in mode.phases.values()} == {None}
    # Whole epochs have their edges in either.
    assert mode.figures["epoch_s"].changes[0].ratio.value is not None


def test_runs_are_labelled_and_the_first_is_the_base() -> None:
    found = compare([even(100), even(50), even(200)])
    assert [run.label for run in found.runs] == ["A", "B", "C"]
    changes = found.modes["single"].figures["throughput"].changes
    assert [change.ratio.value for change in changes] == [pytest.approx(2), pytest.approx(0.5)]


def test_one_run_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="two runs or more, not 1"):
        compare([even(100)])


def test_a_mode_that_one_run_lacks_is_said() -> None:
    found = compare([even(100), even(100, mode="ddp")])
    assert [*found.modes] == ["single", "ddp"]
    states = found.modes["ddp"].states
    assert "no such mode" in str(states[0].withheld)
    assert states[1].withheld is None
    assert [state.status for state in states] == [None, "ok"]
    row = found.modes["ddp"].figures["throughput"]
    assert [figure.value is None for figure in row.figures] == [True, False]
    assert row.changes[0].verdict == "unknown"


def test_what_a_failed_mode_measured_is_not_compared() -> None:
    found = compare([runs.cpu_run(), runs.failed_run()]).modes["ddp"]
    assert found.states[1].withheld == "gradients were not synchronised"
    assert {row.changes[0].verdict for row in (*found.figures.values(), *found.phases.values())} == {"unknown"}


def test_what_a_mode_without_proof_measured_is_not_compared() -> None:
    wrapped = runs.conversion(proof=[Check(name="gradients reduced", ok=False, text="0 B")])
    unproved = analyse(records.run({"single": [runs.launch(runs.rank(conversion=wrapped))]}))
    state = compare([runs.cpu_run(), unproved]).modes["single"].states[1]
    assert state.status == "ok"
    assert "not proved" in str(state.withheld)
    assert str(state.withheld).endswith(": gradients reduced: 0 B")


def test_intervals_are_between_launches_only_where_both_runs_have_several() -> None:
    several, one = runs.repeated_run(), runs.cpu_run()
    for pair, scope in (((several, several), "launches"), ((several, one), "run"), ((one, one), "run")):
        (change,) = compare(pair).modes["single"].figures["throughput"].changes
        assert change.ratio.scope == scope


def test_shares_of_traces_are_compared_and_the_traced_step() -> None:
    busy = replace(
        traced_runs.late_rank(1, 0)[0], devices=(traced_runs.device(of=traced_runs.breakdown(90, 20, 4, 1, 85)),)
    )
    found = compare([traced_runs.late_run(), traced_runs.trace_run(busy)]).modes["trace"]
    assert [*found.figures] == ["traced_step"]
    assert found.phases == {}
    assert found.figures["traced_step"].changes[0].ratio.value == pytest.approx(2)
    values = {key: [figure.value for figure in row.figures] for key, row in found.budget.items()}
    assert values["compute"] == [pytest.approx(0.46), pytest.approx(0.45)]
    assert values["exposed_comm"] == [pytest.approx(0.31), pytest.approx(0.10)]
    assert found.budget["idle"].changes[0].difference.value == pytest.approx(0.425 - 0.18)
    assert values["idle.data"][0] == pytest.approx(0.18 * 3 / 4, abs=0.01)


def test_a_mode_without_traces_says_so() -> None:
    found = compare([traced_runs.traced_profile(), traced_runs.traced_profile()]).modes
    assert found["single"].budget == {}
    assert found["ddp"].budget["compute"].changes[0].verdict == "alike"
    mixed = compare([traced_runs.traced_profile(), runs.cpu_run()]).modes["ddp"].budget["compute"]
    assert mixed.figures[1].reason == "no trace was recorded"


def counted(counters: Counters | None) -> Analysis:
    return analyse(records.run({"single": [records.launch(records.even_rank(100, counters=counters))]}))


COUNTERS = Counters(
    operators=700,
    collectives={"all_reduce": Collective(count=2, num_bytes=1000)},
    inputs=(InputTensor(dtype="float32", shape=(32, 3), num_bytes=384),),
    syncs=(HostSync(call="item", line="a.py:1", count=1), HostSync(call="item", line="a.py:2", count=2)),
)


def test_counters_that_differ() -> None:
    other = replace(COUNTERS, operators=800, collectives={}, syncs=())
    (single,) = compare([counted(COUNTERS), counted(other), counted(None)]).modes.values()
    assert {fact.name: fact.values for fact in single.counters} == {
        "operators": (700, 800, None),
        "all_reduce.count": (2, 0, None),
        "all_reduce.bytes": (1000, 0, None),
        "syncs.item": (3, 0, None),
        "inputs": ("float32 32x3", "float32 32x3", None),
        "inputs.dtypes": ("float32", "float32", None),
        "inputs.bytes": (384, 384, None),
    }
    assert [fact.differs for fact in single.counters] == [(True, None)] * 4 + [(False, None)] * 3


def test_what_an_older_run_did_not_count_is_unknown_there() -> None:
    newer = replace(COUNTERS, allocations=40)
    (single,) = compare([counted(COUNTERS), counted(newer)]).modes.values()
    facts = {fact.name: fact for fact in single.counters}
    assert (facts["allocations"].values, facts["allocations"].differs) == ((None, 40), (None,))
    assert "graph_breaks" not in facts


def test_what_the_runs_ran_on() -> None:
    base = even(100)
    fingerprint = replace(
        base.run.header.fingerprint, packages={"torch": "2.11.0"}, script_sha256=None, gpus=(runs.H100, runs.H100)
    )
    found = facts(compare([base, with_header(base, fingerprint=fingerprint)]))
    assert found["torch"].values == ("2.15.0", "2.11.0")
    assert found["torch"].differs == (True,)
    assert found["torchvision"].values == ("0.29.2", "not installed")
    assert found["script_sha256"].differs == (None,)
    assert found["gpus"].values == ("none found", f"2 x {runs.H100.name}")
    assert found["args"].values == ("--epochs 2", "--epochs 2")


def test_it_is_json() -> None:
    found = msgspec.json.decode(msgspec.json.encode(compare([runs.cpu_run(), runs.gpu_run()])))
    assert (found["schema"], [run["label"] for run in found["runs"]]) == (2, ["A", "B"])
    change = found["modes"]["ddp"]["figures"]["throughput"]["changes"][0]
    assert change.keys() == {"ratio", "difference", "verdict"}
    assert found["modes"]["ddp"]["states"][0]["batch"]["global"] == 64


@pytest.mark.parametrize("run", [runs.rankless_run, runs.empty_run, runs.hostile_run, traced_runs.unreadable])
def test_any_run_can_be_compared(run: object) -> None:
    for pair in ((run(), runs.cpu_run()), (runs.cpu_run(), run()), (run(), run())):
        assert len(compare(pair).runs) == 2


def diagnosed(*findings: Finding, inconclusive: tuple[Inconclusive, ...] = (), of: Analysis | None = None) -> Analysis:
    found = of or runs.cpu_run()
    summary = replace(found.summary, findings=findings, inconclusive=inconclusive)
    return replace(found, summary=summary)


def compared_findings(base: Analysis, other: Analysis) -> FindingComparison:
    (found,) = compare([base, other]).findings
    return found


def costs(value: float, **fields: object) -> Analysis:
    return diagnosed(finding(cost=figure(value, 0.03, "ratio"), **fields))


REFUTED = finding(status="refuted", severity="info", remedy=None, code=None)


@pytest.mark.parametrize(
    ("base", "other", "change"),
    [
        (diagnosed(), costs(0.4), "appeared"),
        (costs(0.4), diagnosed(), "gone"),
        (costs(0.4), costs(0.6), "more"),
        (costs(0.4), costs(0.2), "less"),
        (costs(0.4), costs(0.41), "alike"),
        (diagnosed(REFUTED), costs(0.4), "appeared"),
        (costs(0.4), diagnosed(REFUTED), "gone"),
    ],
)
def test_a_finding_of_one_mode_in_two_runs(base: Analysis, other: Analysis, change: str) -> None:
    found = compared_findings(base, other)
    assert (found.rule, found.mode, found.of) == ("data_starved", "ddp", "step")
    assert found.changes == (change,)


def test_without_an_interval_a_cost_is_not_called_changed() -> None:
    bare = replace(figure(0.6, 0.03, "ratio"), low=None, high=None)
    assert compared_findings(costs(0.4), diagnosed(finding(cost=bare))).changes == ("unclear",)


def test_a_rule_that_could_not_look_does_not_say_gone() -> None:
    blind = diagnosed(inconclusive=(Inconclusive(rule="data_starved", mode="ddp", reason="no loader was seen"),))
    found = compared_findings(costs(0.4), blind)
    assert found.changes == ("unknown",)
    assert found.runs[1].reason == "no loader was seen"


@pytest.mark.parametrize("other", [even(100), runs.failed_run()])
def test_a_mode_that_is_missing_or_failed_does_not_say_gone(other: Analysis) -> None:
    assert compared_findings(costs(0.4), other).changes == ("unknown",)


def test_an_inactive_mode_was_not_asked() -> None:
    of = runs.cpu_run()
    active = with_modes(of, dp=replace(of.summary.modes["dp"], status="ok"))
    found = compared_findings(diagnosed(finding(mode="dp"), of=active), diagnosed(of=of))
    assert found.changes == ("unknown",)
    assert found.runs[1].reason == "there is no accelerator"


def test_what_every_run_refuted_is_left_out() -> None:
    assert compare([diagnosed(REFUTED), diagnosed(REFUTED)]).findings == ()


def test_a_finding_of_a_withheld_mode_is_withheld_with_it() -> None:
    assert compare([diagnosed(finding(mode="fsdp")), diagnosed()]).findings == ()


def test_a_share_of_an_epoch_is_not_compared_with_one_of_a_step() -> None:
    found = compare([costs(0.4), costs(0.4, share_of="epoch")]).findings
    assert [(one.of, one.changes) for one in found] == [("step", ("gone",)), ("epoch", ("appeared",))]


def with_half(value: float, half: float | None = None, *, scope: str = "run", unit: str = "s") -> Figure:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Figure(value=value, low=low, high=high, n=9, unit=unit, scope=scope)


def test_each_run_is_held_against_the_first() -> None:
    found = compared([with_half(10, 1), with_half(20, 1), with_half(5, 1), with_half(10.5, 1)])
    assert [change.ratio.value for change in found.changes] == [2.0, 0.5, 1.05]
    assert [change.difference.value for change in found.changes] == [10, -5, 0.5]
    assert [change.verdict for change in found.changes] == ["more", "less", "alike"]


@pytest.mark.parametrize(("one", "other"), [(with_half(10), with_half(20, 1)), (with_half(10, 1), with_half(20))])
def test_without_an_interval_nothing_is_called_a_change(one: Figure, other: Figure) -> None:
    (change,) = compared([one, other]).changes
    assert (change.ratio.value, change.verdict) == (2.0, "unclear")


def test_what_is_unknown_in_one_run_stays_unknown() -> None:
    unknown = stats.unknown("s", "nothing was measured")
    for pair in ((unknown, with_half(1, 0.1)), (with_half(1, 0.1), unknown)):
        (change,) = compared(pair).changes
        assert change.verdict == "unknown"
        assert change.ratio.reason == change.difference.reason == "nothing was measured"


def test_what_takes_no_time_in_the_base_has_a_difference_and_no_ratio() -> None:
    (change,) = compared([with_half(0, 0), with_half(5, 1)]).changes
    assert change.ratio.value is None
    assert (change.difference.value, change.verdict) == (5, "more")


def test_a_base_that_reaches_zero_has_a_difference_with_an_interval() -> None:
    (change,) = compared([with_half(0.1, 0.2), with_half(40, 1)]).changes
    assert change.ratio.low is None
    assert change.verdict == "more"


def test_nothing_is_not_other_than_nothing() -> None:
    (change,) = compared([with_half(0, 0), with_half(0, 0)]).changes
    assert change.verdict == "alike"


@pytest.mark.parametrize(("scopes", "expected"), [(("launches", "launches"), "launches"), (("launches", "run"), "run")])
def test_a_change_holds_between_launches_only_where_both_figures_do(scopes: tuple[str, str], expected: str) -> None:
    (change,) = compared([with_half(10, 1, scope=scopes[0]), with_half(20, 1, scope=scopes[1])]).changes
    assert change.ratio.scope == change.difference.scope == expected


values, halves = st.floats(0.1, 100), st.floats(0, 20)
figures = st.builds(lambda of, below, above: replace(with_half(of, above), low=of - below), values, halves, halves)


@given(figures, figures)
@example(replace(with_half(1.00, 0.12), low=0.90), replace(with_half(1.17, 0.15), low=1.05))
def test_the_verdict_is_that_of_the_ratio_where_it_has_an_interval(one: Figure, other: Figure) -> None:
    (change,) = compared([one, other]).changes
    low, high = change.ratio.low, change.ratio.high
    assume(low is not None and high is not None)
    assert low is not None
    assert high is not None
    assume(min(abs(low - 1), abs(high - 1)) > 1e-6)
    expected = "more" if low > 1 else "less" if high < 1 else "alike"
    assert change.verdict == expected


def test_a_fact_differs_or_not_or_cannot_be_told() -> None:
    assert fact("cores", [2, 2, 4, None]).differs == (False, True, None)
    assert fact("driver", [None, None]).differs == (None,)
