from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, Finding, analyse
from dpdoctor.gate.model import Calibration, Moved, Pair
from dpdoctor.gate.paired import moved, other_pace
from dpdoctor.records import Collective
from tests.builders import counted_modes, runs
from tests.builders.compared_pairs import with_ddp
from tests.builders.diagnosed_runs import figure, finding, with_findings
from tests.builders.noises import noise
from tests.builders.specs import mode_spec, run

CALIBRATED = Calibration(
    created="2026-01-02T03:04:05Z",
    dpdoctor="0.1.0",
    workload="train.py on 2 CPUs",
    fingerprint=run({mode_spec("ddp", 2): []}).header.fingerprint,
    modes={"ddp": noise(0.02)},
)


@pytest.mark.parametrize(
    ("base_s", "told"),
    [
        ((0.1, 0.1, 0.11), None),
        ((0.124,), None),
        ((0.05, 0.06, 0.1), "60.0 ms"),
        ((0.2,), "200 ms"),
        ((), None),
        ((None, None), None),
    ],
)
def test_a_base_of_another_pace_than_the_calibrated_is_told(base_s: tuple[float | None, ...], told: str | None) -> None:
    pairs = [Pair(base_s=seconds, head_s=0.1, order="AB") for seconds in base_s]
    expected = f"In ddp a step of base takes {told}, and took 100 ms where the noise was measured: calibrate anew"
    assert other_pace({"ddp": pairs}, CALIBRATED) == ((expected,) if told else ())


def test_pairs_that_do_not_count_say_nothing_of_the_pace() -> None:
    held_up = Pair(base_s=0.9, head_s=0.1, order="AB", replaced="throttled")
    assert other_pace({"ddp": [held_up]}, CALIBRATED) == ()


BEFORE_MS = (60, 1, 20, 48, 5, 8)


def found(base: Analysis, head: Analysis, kind: str) -> list[Moved]:
    return [item for item in moved(base, head, "ddp") if item.kind == kind]


def diagnosed(*findings: Finding) -> Analysis:
    return with_findings(runs.cpu_run(), *findings)


def test_of_a_run_and_itself_nothing_moved() -> None:
    assert moved(runs.cpu_run(), runs.cpu_run(), "ddp") == ()


def test_the_phases_that_moved_the_largest_first() -> None:
    phases = found(with_ddp(BEFORE_MS), with_ddp((70, 1, 20, 18, 5, 8)), "phase")
    assert [item.name for item in phases] == ["backward", "data_wait"]
    backward, data_wait = phases
    assert data_wait.base is not None
    assert data_wait.head is not None
    assert (data_wait.base.value, data_wait.head.value) == (pytest.approx(0.060), pytest.approx(0.070))
    assert backward.text == ""


def test_a_phase_whose_interval_has_zero_in_it_did_not_move() -> None:
    # Forward varies by 2 ms between windows.
    assert found(with_ddp(BEFORE_MS), with_ddp((60, 1, 21, 48, 5, 8)), "phase") == []


def test_a_finding_that_appeared_or_is_gone_is_told_by_its_title() -> None:
    (appeared,) = found(diagnosed(), diagnosed(finding()), "finding")
    (gone,) = found(diagnosed(finding()), diagnosed(), "finding")
    assert appeared.text == f"appeared: {finding().title}"
    assert gone.text == f"gone: {finding().title}"
    assert (appeared.base, appeared.head) == (None, finding().cost)
    assert (gone.base, gone.head) == (finding().cost, None)


def test_the_finding_that_moved_most_comes_first() -> None:
    base = diagnosed(finding(cost=figure(0.4, 0.01, "ratio")))
    costlier = finding(cost=figure(0.5, 0.01, "ratio"))
    new = finding(rule="straggler", cost=figure(0.3, 0.01, "ratio"))
    told = found(base, diagnosed(costlier, new), "finding")
    assert [(item.name, item.text.partition(":")[0]) for item in told] == [
        ("straggler", "appeared"),
        ("data_starved", "costs more"),
    ]


def test_a_finding_of_another_mode_is_not_this_ones() -> None:
    assert moved(diagnosed(), diagnosed(finding(mode="single")), "ddp") == ()


def test_counters_that_differ_have_both_values() -> None:
    head = counted_modes.other(operators=710, collectives={"all_reduce": Collective(count=5, num_bytes=1100)})
    counters = found(counted_modes.run(), counted_modes.run(head), "counter")
    assert [(item.name, item.text) for item in counters] == [
        ("all_reduce.count", "5 instead of 2"),
        ("all_reduce.bytes", "1,100 instead of 1,000"),
        ("operators", "710 instead of 700"),
    ]


def test_counters_that_differ_between_launches_of_one_side_are_not_told() -> None:
    first = counted_modes.run()
    (one,) = first.run.modes["ddp"]
    (other,) = counted_modes.run(counted_modes.other(operators=720)).run.modes["ddp"]
    twice = replace(first.run, modes={"ddp": (one, other)})
    base = analyse(twice)
    head = counted_modes.run(counted_modes.other(operators=730, allocations=60))
    assert [item.name for item in found(base, head, "counter")] == ["allocations"]


@pytest.mark.parametrize("head", [runs.failed_run, runs.empty_run])
def test_of_a_mode_without_figures_nothing_is_told(head: Callable[[], Analysis]) -> None:
    assert moved(runs.cpu_run(), head(), "ddp") == ()


def test_of_a_mode_that_neither_run_has_nothing_is_told() -> None:
    assert moved(runs.cpu_run(), runs.cpu_run(), "native") == ()
