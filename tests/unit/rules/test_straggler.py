"""straggler: who is late in the traces, who is slow alone, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.analysis import EventRecord, Figure, Finding, Rank
from dpdoctor.digest import Digest
from dpdoctor.records import CALLED_AT, CpuUse, Sample, StepRecord, WindowRecord
from dpdoctor.rules import CannotTell, diagnose
from dpdoctor.rules.diagnose import ask
from dpdoctor.rules.straggler import (
    CAUSES,
    CRITICAL,
    ELSEWHERE,
    EVEN_OUT,
    OF_LOADER,
    ON_A_HOST,
    ONLY_HERE,
    OTHERS_REMEDY,
    REMEDIES,
    RULE,
    TURN_REMEDIES,
)
from tests.builders import cases, records
from tests.builders.cases import Case, ablation
from tests.builders.simulated_ranks import Call, digests, lockstep, with_group_size
from tests.builders.specs import MS
from tests.builders.traced_cases import case

NUM_STEPS, PER_WINDOW, ROUNDS = 20, 5, 4
WORK_MS, TRANSFER_MS = 80, 10


def traces(late_ms: Sequence[Sequence[int]], cause: str = "python") -> list[Digest]:
    """Return ranks that lose so much before the only call of each step, given by step and rank."""
    segments = (WORK_MS + np.asarray(late_ms)) * MS
    ranks = lockstep(segments, [TRANSFER_MS * MS] * len(segments))
    calls: list[list[Call]] = [[replace(call, cause=cause) for call in rank] for rank in ranks]
    return digests(calls)


def every_step(late_ms: int, num_steps: int = NUM_STEPS) -> list[list[int]]:
    """Return two ranks of which the second is late by so much in every step."""
    return [[0, late_ms]] * num_steps


def paced(
    late_ms: float,
    phase: str = "forward",
    *,
    culprit: int = 1,
    collected: bool = False,
    found: Sequence[Digest] = (),
    chance_ms: float = 0.0,
    queued_ms: float = 0.0,
    others: float = 0.0,
    core: float | None = None,
    device: str = "cpu",
) -> Case:
    """Return two ranks whose steps last 100 ms; without communication 80 ms, of one rank so much longer in `phase`.

    Of `forward+other` each has a half of it.

    In every other round the forward of rank 0 takes `chance_ms` longer, in the others so much less. Without
    communication the late rank waits for a core for `queued_ms` of each step; others use so many of the two cores.
    The late rank's core takes `core` times as long for the same arithmetic; None: that was not tried.
    """
    of = [
        _rank(index, late_ms if index == culprit else 0, phase, collected, chance_ms * (index == 0), device=device)
        for index in range(2)
    ]
    of = [replace(rank, digest=one) for rank, one in zip(of, found, strict=True)] if found else of
    of[culprit] = _queued(of[culprit], queued_ms)
    of[1 - culprit] = _queued(of[1 - culprit], 0)
    if core is not None:
        of[culprit], of[1 - culprit] = _on_core(of[culprit], core), _on_core(of[1 - culprit], 1.0)
    return cases.case("ddp", world_size=2, of=of, samples=_busy(of[0], others) if others else ())


def _queued(rank: Rank, ms: float) -> Rank:
    """Return a rank that waits for a core for so long in each step without communication."""
    windows = [
        replace(window, queued_ns=round(ms * MS * PER_WINDOW * (window.ablation != "full"))) for window in rank.windows
    ]
    return replace(rank, windows=tuple(windows))


def _on_core(rank: Rank, factor: float) -> Rank:
    """Return a rank whose core takes so many times 0.2 ms for the same arithmetic, now a little more, now less."""
    paces = [round(200_000 * factor * (1 + 0.01 * (number // 2 % 2))) for number in range(len(rank.windows))]
    windows = [replace(found, core_benchmark_ns=ns) for found, ns in zip(rank.windows, paces, strict=True)]
    return replace(rank, windows=tuple(windows))


def _busy(rank: Rank, others: float) -> list[Sample]:
    """Return readings of two cores that are all in use, so many of them by other processes."""
    found: list[Sample] = []
    for window in rank.windows[::2]:
        found.append(Sample(at_ns=window.begin_ns, source="host", values={"cpu_ratio": 1.0, "num_cpus": 2.0}))
        found.append(Sample(at_ns=window.begin_ns + 1, source="rank0", values={"cpu_cores": 2.0 - others}))
    return found


def _rank(index: int, late_ms: float, phase: str, collected: bool, chance_ms: float, *, device: str = "cpu") -> Rank:
    steps: list[StepRecord] = []
    windows: list[WindowRecord] = []
    events: list[EventRecord] = []
    at = 0
    for number in range(2 * ROUNDS):
        name = "no_comm" if number % 2 else "full"
        # A little noise, so that there is an interval.
        by_chance = chance_ms if number % 4 == 1 else -chance_ms
        ms = 100.0 if name == "full" else 80 + late_ms + 0.1 * (number // 2) + by_chance
        begin = at
        for _ in range(PER_WINDOW):
            own = {"forward": ms} if name == "full" else _with({"forward": ms - late_ms}, phase, late_ms)
            made = records.step(ms, step=len(steps), window=number, begin_ns=at, phases_ms=own)
            if collected and late_ms:
                events.append(
                    EventRecord(kind="gc", at_ns=at + MS, duration_ns=round(late_ms * MS), step=len(steps), detail="")
                )
            steps.append(made)
            at += made.duration_ns
        window = records.window(0, window=number, ablation=name, round=number // 2, begin_ns=begin, end_ns=at)
        windows.append(window)
    rank = records.rank(steps, windows, index=index, world_size=2, device=device)
    return replace(rank, events=tuple(events))


def _with(phases: dict[str, float], phase: str, ms: float) -> dict[str, float]:
    parts = phase.split("+")
    return {**phases, **{part: phases.get(part, 0.0) + ms / len(parts) for part in parts}}


FIRES = {
    "late in every traced step": case("ddp", *traces(every_step(30))),
    "in turns": case("ddp", *traces([[30, 0], [0, 30]] * 10)),
    "every four steps": case("ddp", *traces([[0, 0], [0, 60], [0, 0], [0, 0]] * 5)),
    "slow without communication": paced(20),
    "both": paced(30, found=traces(every_step(30))),
}
SILENT = {
    "nobody is late": case("ddp", *traces([[0, 0]] * NUM_STEPS)),
    "hardly late": case("ddp", *traces(every_step(3))),
    "all alike without communication": paced(0),
    "hardly slower without communication": paced(2),
    "late in the trace, and not by itself": paced(0, found=traces(every_step(30))),
    "one device": cases.case("single"),
    "failed": case("ddp", *traces(every_step(30)), status="failed"),
}


def test_a_trace_that_slows_steps_much_says_little_of_who_is_late() -> None:
    for factor, expected in ((1.5, Finding), (2.9, CannotTell)):
        cost = cases.figure(factor, unit="ratio")
        assert isinstance(RULE.check(case("ddp", *traces(every_step(30)), profiler_overhead=cost)), expected)


def finding(of: Case) -> Finding:
    found = RULE.check(of)
    assert isinstance(found, Finding)
    return found


def test_rank_and_cost_of_the_trace() -> None:
    found = finding(FIRES["late in every traced step"])
    assert (found.ranks, found.status) == ((1,), "inferred")
    assert found.cost.value == pytest.approx(30 / 120)
    assert found.severity == "critical"


def test_steps_in_which_another_rank_is_late_are_not_told_as_the_culprits() -> None:
    # The first step is not judged.
    found = finding(case("ddp", *traces([[0, 30]] * 17 + [[30, 0]] * 3)))
    assert found.ranks == (1,)
    assert found.evidence[0].startswith("in 16 of 19 traced steps one rank comes late")


def test_ranks_in_turns_have_no_culprit() -> None:
    found = finding(FIRES["in turns"])
    assert found.ranks == ()
    assert "one after the other" in found.title


@pytest.mark.parametrize(("efficiency", "most"), [(0.5, 2.0), (0.9, None)])
def test_without_waiting_ranks_scale_no_better_than_linearly(efficiency: float, most: float | None) -> None:
    late = [[ms, 0][:: -1 if step % 2 else 1] for step, ms in enumerate([200, 15] * 5)]
    known = Figure(value=efficiency + 0.1, low=efficiency, high=efficiency + 0.2, unit="ratio")
    found = finding(case("ddp", *traces(late), scaling_efficiency=known))
    assert finding(case("ddp", *traces(late))).speedup.high > 2.2, "so far its interval alone reaches"
    assert found.speedup.high == pytest.approx(most or found.speedup.value)
    assert found.cost.value == finding(case("ddp", *traces(late))).cost.value


def test_a_period_is_spread_over_its_steps() -> None:
    found = finding(FIRES["every four steps"])
    assert found.ranks == (1,)
    assert "every 4 steps" in found.title
    # 15 of 105 ms on average; the first step is not judged.
    assert found.cost.value == pytest.approx(15 / 105, rel=0.06)


def test_the_ablation_gives_rank_and_cost_without_a_trace() -> None:
    found = finding(FIRES["slow without communication"])
    assert (found.ranks, found.status) == ((1,), "confirmed")
    assert found.cost.value == pytest.approx(0.2, abs=0.005)


def test_the_ablation_confirms_the_trace_and_is_the_cost() -> None:
    found = finding(FIRES["both"])
    assert (found.ranks, found.status) == ((1,), "confirmed")
    assert found.cost.value == pytest.approx(0.3, abs=0.005)
    assert len(found.evidence) == 3


def test_the_ablation_has_more_steps_than_a_trace_that_sees_ranks_in_turns() -> None:
    found = finding(paced(30, found=traces([[30, 0], [0, 30]] * 10)))
    assert (found.ranks, found.status) == ((1,), "confirmed")
    assert found.cost.value == pytest.approx(0.3, abs=0.005)


@pytest.mark.parametrize(
    ("phase", "word"), [("data_wait", "loader"), ("forward", "forward"), ("other", "code of the script")]
)
def test_the_cause_is_the_phase_that_explains_it(phase: str, word: str) -> None:
    assert word in (finding(paced(20, phase)).cause or "")


def test_a_cause_that_is_certain_counts_where_chance_hides_it_in_the_whole_step() -> None:
    found = finding(paced(20, "other", chance_ms=15))
    assert (found.ranks, found.status) == ((1,), "confirmed")
    assert found.cost.value == pytest.approx(0.2, abs=0.001)
    assert "code of the script" in (found.cause or "")
    assert any("`other`" in text and "20%" in text for text in found.evidence)


def test_a_rank_that_is_slower_by_chance_is_not_named() -> None:
    assert isinstance(RULE.check(paced(0, chance_ms=15)), CannotTell)


def test_collections_at_the_time_explain_it_before_the_phase_they_fell_into() -> None:
    assert "garbage" in (finding(paced(20, "other", collected=True)).cause or "")


@pytest.mark.parametrize(("cause", "word"), [("data", "loader"), ("compute", "computing")])
def test_the_trace_s_own_cause(cause: str, word: str) -> None:
    assert word in (finding(case("ddp", *traces(every_step(100), cause))).cause or "")


def test_what_goes_with_the_communication_is_never_more_than_the_ablation_gains() -> None:
    found = finding(case("ddp", *traces([[30, 0], [0, 30]] * 10), ablations={"no_comm": ablation(0.15)}))
    assert (found.status, found.cost.value) == ("inferred", pytest.approx(0.15))


def test_batches_of_different_size_are_the_finding_to_act_on() -> None:
    of = []
    for index, digest in enumerate(traces([[30, 0], [0, 30]] * 10)):
        steps = []
        for number in range(8):
            # Forward takes 1 ms per element, and every second step has the larger batch.
            elements = 50 if number % 2 == index else 20
            phases = {"forward": elements, "backward": 120 - elements}
            steps.append(records.step(120, step=number, phases_ms=phases, elements=elements))
        rank = records.rank(steps, [records.window(8 * 120)], index=index, world_size=2)
        of.append(replace(rank, digest=digest))
    assert RULE.check(cases.case("ddp", world_size=2, of=of)) is None


@pytest.mark.parametrize("made", [case("ddp", *traces(every_step(30, 4))), cases.case("ddp", world_size=2)])
def test_it_cannot_tell_from_few_steps_or_none(made: Case) -> None:
    found = RULE.check(made)
    assert isinstance(found, CannotTell)
    assert "--ablations no_comm" in found.reason


def test_a_rank_whose_core_others_took_is_the_machines_doing() -> None:
    found = RULE.check(paced(20, queued_ms=19, others=0.9))
    assert isinstance(found, Finding)
    assert "other processes used 0.90 of 2 cores" in (found.cause or "")
    assert (found.remedy, found.speedup, found.severity) == (OTHERS_REMEDY, None, "info")


def test_a_rank_that_waits_for_a_core_which_the_run_itself_takes_is_the_scripts() -> None:
    found = RULE.check(paced(20, queued_ms=19))
    assert isinstance(found, Finding)
    assert (found.cause, found.remedy) == (CAUSES["queue"], REMEDIES["queue"])


@pytest.mark.parametrize(
    ("started_s", "is_the_scripts"), [((0.0, 5.0), True), ((5.0, 5.0), False), ((0.0, 1.0), False)]
)
def test_processes_that_only_the_late_rank_started_are_the_scripts_whatever_else_runs(
    started_s: tuple[float, float], is_the_scripts: bool
) -> None:
    found = finding(_with_processes(paced(20, queued_ms=19, others=0.9), started_s))
    assert (found.cause == CAUSES["queue"]) == is_the_scripts
    assert (found.remedy == OTHERS_REMEDY) != is_the_scripts


def _with_processes(case: Case, started_s: tuple[float, float]) -> Case:
    """Return a case whose ranks started processes that computed for so many seconds."""
    (launch,) = case.analysis.run.modes["ddp"]
    of = [
        replace(rank, record=replace(rank.record, cpu=_used(seconds)))
        for rank, seconds in zip(launch.ranks, started_s, strict=True)
        if rank.record
    ]
    return cases.case("ddp", world_size=2, of=of, samples=launch.samples)


def _used(started_s: float) -> CpuUse:
    """Return that a rank computed for 6 of 10 s, and what it started for so many."""
    return CpuUse(cpu_s=6.0, workers_cpu_s=started_s, wall_s=10.0, involuntary_switches=None, num_threads=1)


@pytest.mark.parametrize(
    ("queued_share", "others", "is_the_machines"), [(0.3, 0.9, True), (0.3, 0, False), (0.1, 0.9, False)]
)
def test_what_nothing_explains_is_the_machines_doing_where_others_let_all_ranks_wait_for_cores(
    queued_share: float, others: float, is_the_machines: bool
) -> None:
    case = paced(20, "forward+other", others=others)
    (launch,) = case.analysis.run.modes["ddp"]
    of = [_waiting(rank, queued_share) for rank in launch.ranks]
    found = finding(cases.case("ddp", world_size=2, of=of, samples=launch.samples))
    assert found.cause is None or is_the_machines
    assert (found.remedy == OTHERS_REMEDY) == is_the_machines
    assert (found.severity == "info") == is_the_machines


@pytest.mark.parametrize(
    ("queued_share", "others", "is_the_machines"), [(0.2, 0.9, True), (0.2, 0, False), (0.1, 0.9, False)]
)
def test_ranks_in_turns_are_the_machines_doing_where_waiting_for_cores_is_within_what_they_cost(
    queued_share: float, others: float, is_the_machines: bool
) -> None:
    late_ms = [10, 90, 20, 10, 60] * 4
    in_turns = traces([[ms, 0][:: -1 if step % 2 else 1] for step, ms in enumerate(late_ms)])
    ranks = [_waiting(_in_full(_rank(index, 0, "forward", False, 0)), queued_share) for index in range(2)]
    of = [replace(rank, digest=digest) for rank, digest in zip(ranks, in_turns, strict=True)]
    found = finding(cases.case("ddp", world_size=2, of=of, samples=_busy(of[0], others) if others else ()))
    assert found.ranks == ()
    assert found.cost.low is not None
    assert found.cost.low < 0.2 < 0.8 * (found.cost.value or 0)
    assert (found.remedy == OTHERS_REMEDY) == (found.severity == "info") == is_the_machines


@pytest.mark.parametrize(
    ("phase", "word", "remedy"),
    [
        ("data_wait", "loader", TURN_REMEDIES["data_wait"]),
        ("other", "code of the script", TURN_REMEDIES["other"]),
        ("backward", "backward", EVEN_OUT),
        ("data_wait+forward", None, EVEN_OUT),
    ],
)
def test_what_makes_ranks_late_in_turns_is_the_phase_that_differs_by_step(
    phase: str, word: str | None, remedy: str
) -> None:
    found = finding(cases.case("ddp", world_size=2, of=late_by_turns(phase)))
    assert (found.ranks, found.status, found.remedy) == ((), "confirmed", remedy)
    assert word in found.cause if word and found.cause else found.cause is word
    assert sum(f"100% of that lies in `{phase}`" in text for text in found.evidence) == (word is not None)


@pytest.mark.parametrize("waited_s", [0.04, 0.0])
def test_ranks_that_wait_for_their_loaders_in_turns_are_a_fact_beside_what_the_loader_costs(waited_s: float) -> None:
    said = ask(cases.case("ddp", world_size=2, of=late_by_turns("data_wait"), phases_s={"data_wait": waited_s}))
    found = said["straggler"]
    assert isinstance(found, Finding)
    assert isinstance(said["data_starved"], Finding) == bool(waited_s)
    assert (found.severity == "info") == (found.remedy is None) == (found.speedup is None) == bool(waited_s)
    assert found.no_remedy == (OF_LOADER if waited_s else None)


def late_by_turns(phase: str) -> list[Rank]:
    """Return two ranks of which now one, now the other is late, by the trace and, in a phase, without communication."""
    late, early = _with({"forward": 80.0}, phase, 30), {"forward": 80.0}
    ranks = records.ranks_alone([late, early] * 2, [early, late] * 2)
    in_turns = zip(ranks, traces([[30, 0], [0, 30]] * 10), strict=True)
    return [replace(rank, digest=digest) for rank, digest in in_turns]


def _waiting(rank: Rank, share: float) -> Rank:
    """Return a rank that waits for a core for so much of its full windows."""
    windows = [
        replace(window, queued_ns=round(share * (window.end_ns - window.begin_ns)))
        if window.ablation == "full"
        else window
        for window in rank.windows
    ]
    return replace(rank, windows=tuple(windows))


def _in_full(rank: Rank) -> Rank:
    """Return a rank that ran no ablation."""
    windows = tuple(window for window in rank.windows if window.ablation == "full")
    numbers = {window.window for window in windows}
    return replace(rank, windows=windows, steps=tuple(s for s in rank.steps if s.window in numbers))


def test_a_rank_that_has_more_to_do_is_so_beside_other_load_too() -> None:
    found = RULE.check(paced(20, queued_ms=5, others=0.9))
    assert isinstance(found, Finding)
    assert (found.cause, found.remedy) == (CAUSES["forward"], REMEDIES["forward"])


def test_a_rank_whose_core_is_slower_by_as_much_is_so_for_its_core() -> None:
    found = finding(paced(20, core=1.25))
    assert (found.cause, found.remedy) == (CAUSES["core"], REMEDIES["core"])
    # 100 ms at four fifths of the pace, and a step lasts 100 ms.
    assert any("20% (" in text for text in found.evidence)


@pytest.mark.parametrize("core", [1.0, 1.1, 0.8])
def test_a_rank_whose_core_explains_little_of_it_has_more_to_do(core: float) -> None:
    assert finding(paced(20, core=core)).cause == CAUSES["forward"]


def test_a_core_that_others_use_too_is_the_machines_doing() -> None:
    found = finding(paced(20, core=1.25, others=0.9))
    assert "other processes used 0.90 of 2 cores" in (found.cause or "")
    assert found.remedy == OTHERS_REMEDY


@pytest.mark.parametrize(
    ("queued_ms", "others", "cause", "cost"),
    [
        (20, 0.9, CAUSES["other"], 0.2),
        (20, 0, None, 0.4),  # its own threads, or a pinned rank
        (0, 0.9, None, 0.4),
    ],
)
def test_what_is_left_without_the_waiting_for_a_core_that_others_took_is_the_scripts(
    queued_ms: float, others: float, cause: str | None, cost: float
) -> None:
    # Of 40 ms it waits for 20, in what lasts 120: the forward's 100 are 83 without, and the other code's 20 are 17.
    found = finding(paced(40, "forward+other", queued_ms=queued_ms, others=others))
    assert found.cause == cause
    assert found.cost.value == pytest.approx(cost, abs=0.01)
    assert any("it waits for a core for 20% (" in text for text in found.evidence) == bool(queued_ms)


def test_where_next_to_nothing_is_left_without_that_waiting_it_is_the_machines_doing() -> None:
    found = finding(paced(20, "forward+other", queued_ms=15.5, others=0.9))
    assert "other processes used 0.90 of 2 cores" in (found.cause or "")
    assert (found.severity, found.speedup) == ("info", None)


@pytest.mark.parametrize(("started_s", "cause"), [((0.0, 5.0), CAUSES["workers"]), ((5.0, 5.0), None)])
def test_loader_processes_that_keep_a_rank_waiting_and_take_its_core(
    started_s: tuple[float, float], cause: str | None
) -> None:
    assert finding(_with_processes(paced(40, "data_wait+forward", queued_ms=15), started_s)).cause == cause


def test_a_finding_tells_what_else_ran_beside_it() -> None:
    found = diagnose(paced(20, others=0.9).analysis).summary.findings
    assert [f.rule for f in found] == ["straggler"]
    assert "other processes used 0.90 of 2 cores while this was measured" in found[0].evidence


def test_the_only_rank_of_a_group_waits_for_nobody() -> None:
    traced = with_group_size(traces(every_step(0))[0], "0", 1)
    assert isinstance(RULE.check(case("trace", traced)), CannotTell)
    assert RULE.check(case("single", traced)) is None


def test_the_remedy_in_a_few_words_names_the_rank() -> None:
    assert finding(paced(20, "other")).short_remedy == "find what the script does on rank 1 only"
    assert finding(paced(20, queued_ms=19, others=0.9)).short_remedy is None


def test_a_rank_that_is_late_for_no_known_reason_may_be_so_in_this_run_only() -> None:
    found = finding(paced(20, "forward+other"))
    assert (found.cause, found.remedy, found.severity) == (None, ON_A_HOST, "critical")


def test_it_alarms_only_by_what_it_costs_at_least_where_nothing_explains_it() -> None:
    found = finding(paced(15, "forward+other", chance_ms=4))
    assert found.cost.low is not None
    assert found.cost.low < CRITICAL < (found.cost.value or 0)
    assert (found.cause, found.severity) == (None, "warning")


def test_what_is_known_to_take_longer_is_looked_for_on_that_rank() -> None:
    assert finding(case("ddp", *traces(every_step(100), "optimizer"))).remedy == ONLY_HERE


def test_ranks_of_a_trace_may_be_on_other_hosts() -> None:
    assert finding(case("trace", *traces(every_step(100), "optimizer"))).remedy == ELSEWHERE


@pytest.mark.parametrize("phase", ["other", "h2d", "forward", "backward"])
def test_a_host_that_waits_for_a_slow_gpu_is_not_blamed_for_it(phase: str) -> None:
    """It does so wherever the script asks for a value or copies: what is slow there is the device."""
    found = finding(paced(20, phase, device="cuda:0"))
    assert (found.ranks, found.cost.value) == ((1,), pytest.approx(0.2, abs=0.01))
    assert (found.cause, found.remedy) == (None, ELSEWHERE)
    assert "throttling" in ELSEWHERE


@pytest.mark.parametrize(("phase", "collected", "cause"), [("data_wait", False, "data_wait"), ("other", True, "gc")])
def test_on_a_gpu_too_a_loader_and_garbage_are_the_hosts(phase: str, collected: bool, cause: str) -> None:
    found = finding(paced(20, phase, device="cuda:0", collected=collected))
    assert (found.cause, found.remedy) == (CAUSES[cause], REMEDIES[cause])


def test_a_rank_that_calls_the_collector_is_told_the_line() -> None:
    slow = paced(20, "other", collected=True)
    ranks = [
        replace(rank, events=tuple(replace(e, detail=f"generation 2{CALLED_AT}train.py:41") for e in rank.events))
        for rank in slow.launch.ranks
    ]
    found = finding(cases.case("ddp", world_size=2, of=ranks))
    assert found.cause == CAUSES["gc"]
    assert (
        found.remedy == "call gc.collect() on all ranks in the same step, or not at all: train.py:41 calls gc.collect()"
    )
    assert found.short_remedy == "call gc.collect() on all ranks in the same step"
