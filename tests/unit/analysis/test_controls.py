"""What watching costs, worked out on paper: bare steps of 100 ms against watched ones; two launches of one program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.analysis import analyse
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import RunSummary
from dpdoctor.analysis.controls import (
    NO_BASELINE,
    NO_CONTROL,
    NO_STEADY_WINDOW,
    NOT_KNOWN,
    OTHER_PROGRAM,
    is_known,
    is_too_much,
    launch_spread,
    same_program_words,
    steps_of,
    why_cost_unknown,
)
from dpdoctor.analysis.facts import Analysis
from dpdoctor.cli._report import own_cost_is_clear
from dpdoctor.records import RUNS_AS_PYTHON, Conversion, Launch, Rank, Sample
from dpdoctor.report.blocks import Table
from dpdoctor.report.words.verdict import limits
from dpdoctor.rules import diagnose
from tests.builders import records, specs
from tests.builders.records import ahead, even_rank, launch, rank, step, window
from tests.builders.sections import build, only
from tests.builders.specs import MS

# Simulated runs of a kind: enough to tell 95% from 90%.
TIMES = 200


def bare(*milliseconds: float) -> tuple[Launch, ...]:
    """Return bare launches whose steps last so long, in two windows each."""
    return tuple(launch(even_rank(ms, num_windows=2, num_steps=4), mode="bare") for ms in milliseconds)


def watched(
    ms: float,
    control: Sequence[Launch],
    *,
    ddp_ms: float = 200,
    samples: Sequence[Sample] = (),
    again: Sequence[Launch] = (),
) -> Analysis:
    single = replace(launch(even_rank(ms, num_windows=2)), samples=tuple(samples))
    ddp = [even_rank(ddp_ms, num_windows=2, index=index, world_size=2) for index in range(2)]
    modes = {"single": [single], "ddp": [launch(*ddp, mode="ddp")]}
    run = records.run(modes, {"ddp": 2})
    return analyse(replace(run, bare=tuple(control), watched=tuple(again)))


def test_it_is_what_a_step_takes_beyond_a_bare_one() -> None:
    share = watched(125, bare(100, 100, 100)).summary.modes["single"].observer_overhead
    assert share.value == pytest.approx(0.2)
    assert (share.low, share.high) == pytest.approx((0.2, 0.2))


def test_the_same_seconds_are_a_smaller_share_of_a_longer_step() -> None:
    share = watched(125, bare(100, 100), ddp_ms=250).summary.modes["ddp"].observer_overhead
    assert share.value == pytest.approx(0.1)


def test_launches_that_differ_leave_it_in_doubt() -> None:
    modes = watched(110, bare(90, 100, 110)).summary.modes
    share = modes["single"].observer_overhead
    assert share.value == pytest.approx(10 / 110)
    # One launch lies within t(2) standard deviations of 10 ms of the mean, and the mean of three within 1 / sqrt(3).
    half = stats.student_t(2) * 0.01 * (1.1**2 + (0.9**2 + 1 + 1.1**2) / 9) ** 0.5
    assert share.high == pytest.approx((0.01 + half) / 0.11)
    assert modes["single"].throughput.value == pytest.approx(32 / 0.11)


def test_launches_that_differ_do_not_widen_the_figures_of_modes() -> None:
    throughput = watched(100, bare(90, 100, 110)).summary.modes["single"].throughput
    assert (throughput.scope, stats.half_width(throughput)) == ("run", 0)


def test_a_baseline_beside_which_others_ran_is_not_held_against_bare_launches() -> None:
    busy = [
        Sample(at_ns=5 * MS + 1, source="host", values={"cpu_ratio": 1.0, "num_cpus": 2.0}),
        Sample(at_ns=5 * MS + 2, source="rank0", values={"cpu_cores": 1.0}),
    ]
    analysis = watched(200, bare(100, 100, 100), samples=busy)
    assert analysis.summary.modes["single"].throughput.value == pytest.approx(32 / 0.2)
    assert analysis.summary.modes["single"].observer_overhead.value is None
    assert "of 2 cores other processes used 1.0 (single)" in analysis.summary.caveat
    assert "no speedup is given" in analysis.summary.caveat


def test_how_far_launches_lie_apart() -> None:
    assert launch_spread(steps_of(bare(90, 100, 110), ())) == pytest.approx(stats.student_t(2) * 0.1)
    assert launch_spread(steps_of(bare(90), ()), steps_of(bare(100), ())) is None
    # Two programs: of the one squares of 0.1 and 0.1, of the other 0.05 and 0.05, over three degrees of freedom.
    both = launch_spread(steps_of(bare(90, 100, 110), ()), steps_of(bare(190, 210), ()))
    assert both == pytest.approx(stats.student_t(3) * (0.025 / 3) ** 0.5)


def test_the_interval_of_a_calibrated_baseline_is_not_what_its_windows_say() -> None:
    calibrated = Figure(value=0.10, low=0.08, high=0.12, n=1, unit="s", scope="calibrated")
    again = Figure(value=0.11, n=1, unit="s")
    assert launch_spread([calibrated, again]) == pytest.approx(stats.student_t(1) * 2**0.5 * 0.005 / 0.105)


def test_more_launches_of_both_kinds_leave_less_doubt() -> None:
    once = watched(104, bare(99, 100, 101)).summary.modes["single"].observer_overhead
    more = watched(104, bare(99, 100, 101, 100), again=bare(105)).summary.modes["single"].observer_overhead
    assert more.value == pytest.approx(4.5 / 104)
    assert stats.half_width(more) < 0.5 * stats.half_width(once)


NATIVE = replace(specs.mode_spec("native", 2), launcher=("torchrun",))


UNWATCHED_RATE = "The rate of native is of unwatched steps; its step and what it consists of were watched"


def in_turns(unwatched_ms: Sequence[float], world_size: int = 2) -> list[Rank]:
    """Return ranks whose steps take 100 ms, of which hooks say that they take 5, in turns with unwatched ones."""
    steps, windows = [], []
    for turn, ms in enumerate(unwatched_ms, 1):
        for number, ablation, each_ms in ((2 * turn, "full", 100), (2 * turn + 1, "unwatched", ms)):
            steps += [step(each_ms, window=number)] * 4
            windows.append(window(4 * each_ms, window=number, round=turn, ablation=ablation))
    how = {"observer_ns": 5e6, "world_size": world_size}
    return [rank(steps, windows, index=index, **how) for index in range(world_size)]


class TestTooMuch:
    @pytest.fixture
    def analysis(self) -> Analysis:
        return watched(200, bare(100, 101, 99))

    def test_the_rate_of_one_device_is_that_of_the_bare_script(self, analysis: Analysis) -> None:
        throughput = analysis.summary.modes["single"].throughput
        assert throughput.value == pytest.approx(320)
        assert throughput.scope == "launches"

    def test_a_rate_and_a_step_of_two_programs_are_told_apart(self, analysis: Analysis) -> None:
        (told,) = [text for text in limits(analysis.summary) if "bare launches" in text]
        assert "which takes 50% of it" in told

    def test_what_is_watched_alone_has_no_rate(self, analysis: Analysis) -> None:
        mode = analysis.summary.modes["ddp"]
        figures = (mode.throughput, mode.throughput_all_steps, mode.speedup, mode.epoch_s, mode.scaling_efficiency)
        assert [figure.value for figure in figures] == [None] * 5
        assert "watching this script takes 50%" in str(mode.throughput.reason)

    def test_no_finding_is_made_of_it(self) -> None:
        def steps(ms: float, wait: float) -> Rank:
            phases = {"data_wait": wait, "forward": ms - wait}
            return rank([step(ms, phases_ms=phases) for _ in range(8)], [window(8 * ms)])

        def found(control: Sequence[Launch]) -> dict[str, str]:
            run = records.run({"single": [launch(steps(200, 90))]})
            summary = diagnose(analyse(replace(run, bare=tuple(control)))).summary
            said = {finding.rule: "found" for finding in summary.findings}
            return said | {item.rule: item.reason for item in summary.inconclusive}

        assert found(bare(199, 200, 201))["data_starved"] == "found"
        assert "watching the script takes" in found(bare(100, 101, 99))["data_starved"]


class TestUnclear:
    """Watching seems to take 9.1% of a step, but launches of one program differ by as much."""

    @pytest.fixture
    def analysis(self) -> Analysis:
        return watched(110, bare(98, 100, 102))

    def test_figures_stay_and_their_intervals_hold_the_script_alone(self, analysis: Analysis) -> None:
        single, ddp = (analysis.summary.modes[name] for name in ("single", "ddp"))
        most = single.observer_overhead.high
        assert most is not None
        assert single.observer_overhead.low is not None
        assert single.observer_overhead.low < 0.05 < most
        assert single.throughput.value == pytest.approx(32 / 0.11)
        assert (single.throughput.low, single.throughput.high) == pytest.approx((32 / 0.11, 32 / 0.11 / (1 - most)))
        assert ddp.speedup.value == pytest.approx(2 * 110 / 200)
        # Both sides hold it: if watching takes so many seconds, the baseline alone is faster by more than ddp is.
        against = (1 - most) / (1 - most * 110 / 200)
        assert (ddp.speedup.low, ddp.speedup.high) == pytest.approx((1.1 * against, 1.1))
        assert ddp.scaling_efficiency.low == pytest.approx(0.55 * against)

    def test_more_launches_are_asked_for(self, analysis: Analysis) -> None:
        def known(ms: float, *control: float) -> bool:
            return is_known(watched(ms, bare(*control)).summary.modes["single"].observer_overhead)

        assert not is_known(analysis.summary.modes["single"].observer_overhead)
        assert not known(100, 90, 100, 110), "nothing at all, but it may be a fifth"
        assert known(101, 99, 100, 101), "little"
        assert known(200, 99, 100, 101), "too much"
        assert known(110, 100), "one launch and one: no interval, and nothing that says how to get one"

    def test_it_is_said(self, analysis: Analysis) -> None:
        assert any("Watching the script may take 9.1% of each step" in text for text in limits(analysis.summary))

    def test_one_that_may_take_all_of_a_step_leaves_no_figure_and_is_not_called_too_much(self) -> None:
        modes = watched(200, bare(20, 100, 180)).summary.modes.values()
        assert {(mode.throughput.value, mode.throughput.reason) for mode in modes} == {(None, NOT_KNOWN)}

    def test_samples_that_are_not_counted_stay_the_reason_why_there_is_no_rate(self) -> None:
        uncounted = rank([step(200, samples_drawn=0, samples_entered=0)] * 8, [window(1600)])
        run = records.run({"single": [launch(uncounted)]})
        single = analyse(replace(run, bare=bare(20, 100, 180))).summary.modes["single"]
        assert "samples could be counted" in str(single.throughput.reason), single.throughput


class TestUnderNoise:
    """Launches of one program differ by 2%, their windows by 3%; bare steps of 100 ms, and a planted own cost."""

    @staticmethod
    def launch_of(random: np.random.Generator, ms: float, mode: str, world_size: int = 1) -> Launch:
        of_launch = ms * random.normal(1, 0.02)
        windows = [of_launch * random.normal(1, 0.03) for _ in range(5)]
        steps = [step(each, window=number) for number, each in enumerate(windows, 1) for _ in range(4)]
        ends = [window(4 * each, window=number) for number, each in enumerate(windows, 1)]
        return launch(*(rank(steps, ends, index=i, world_size=world_size) for i in range(world_size)), mode=mode)

    @classmethod
    def run_of(cls, random: np.random.Generator, cost_ms: float, turns: int) -> Analysis:
        """Return a run whose ddp trains 1.25 times as fast as one device, both watched for so long in each step."""
        single = cls.launch_of(random, 100 + cost_ms, "single")
        ddp = cls.launch_of(random, 160 + cost_ms, "ddp", 2)
        run = records.run({"single": [single], "ddp": [ddp]}, {"ddp": 2})
        control = tuple(cls.launch_of(random, 100, "bare") for _ in range(3 + turns))
        again = tuple(cls.launch_of(random, 100 + cost_ms, "watched") for _ in range(turns))
        return analyse(replace(run, bare=control, watched=again))

    @pytest.mark.parametrize("turns", [0, 2])
    @pytest.mark.parametrize("cost_ms", [0.0, 3.0, 10.0])
    def test_intervals_cover_and_no_wrong_figure_stands(self, cost_ms: float, turns: int) -> None:
        random = np.random.default_rng(int(10 * cost_ms) + turns)
        true = cost_ms / (100 + cost_ms)
        covered = wrong = withheld = 0
        for _ in range(TIMES):
            modes = self.run_of(random, cost_ms, turns).summary.modes
            covered += _holds(modes["single"].observer_overhead, true)
            speedup = modes["ddp"].speedup
            withheld += speedup.value is None
            # Of one launch each, whose spread no window shows: 1.25 may be off by two of 2%.
            wrong += speedup.value is not None and not _holds(speedup, 1.25, spare=2.8 * 0.02 * 1.25)
        assert covered >= 0.92 * TIMES
        assert wrong <= 0.08 * TIMES
        if true < 0.05:
            assert withheld <= 0.05 * TIMES

    def test_more_launches_tell_a_large_cost_from_none(self) -> None:
        def num_told(turns: int) -> int:
            random = np.random.default_rng(turns)
            modes = [self.run_of(random, 20, turns).summary.modes["ddp"] for _ in range(TIMES)]
            return sum(mode.speedup.value is None for mode in modes)

        assert num_told(2) > 0.9 * TIMES > num_told(0)


def _holds(figure: Figure, value: float, spare: float = 0.0) -> bool:
    assert figure.low is not None
    assert figure.high is not None
    return figure.low - spare <= value <= figure.high + spare


class TestUnknown:
    def test_without_a_control_only_the_hooks_are_counted(self) -> None:
        modes = analyse(records.run({"single": [launch(even_rank(100, observer_ns=1e6))]})).summary.modes
        assert (modes["single"].observer_overhead.value, modes["single"].observer_overhead.reason) == (0.01, NO_CONTROL)

    @pytest.mark.parametrize("baseline", [{}, {"single": [launch(status="failed", reason="the disk is full")]}])
    def test_without_a_baseline_the_hooks_are_not_said_to_be_beyond_the_bare_script(
        self, baseline: dict[str, Sequence[Launch]]
    ) -> None:
        ranks = [even_rank(100, observer_ns=1e6, index=index, world_size=2) for index in range(2)]
        run = records.run({**baseline, "ddp": [launch(*ranks, mode="ddp")]}, {"ddp": 2})
        analysis = analyse(replace(run, bare=bare(100, 101) if baseline else ()))
        share = analysis.summary.modes["ddp"].observer_overhead
        assert (share.value, share.reason) == (0.01, NO_BASELINE)
        (table,) = only(Table, build("overhead", analysis))
        assert "estimated from what one hook costs" in table.caption

    def test_rates_of_a_script_that_distributes_itself_reach_what_it_does_without_the_hooks(self) -> None:
        ranks = [even_rank(100, num_windows=2, observer_ns=2e7, index=index, world_size=2) for index in range(2)]
        found = analyse(specs.run({NATIVE: [launch(*ranks, mode="native")]})).summary
        rate = found.modes["native"].throughput
        assert (rate.value, rate.low, rate.high) == pytest.approx((640, 640, 640 / 0.8))
        assert "not also run bare" in " ".join(limits(found))

    @pytest.mark.parametrize(
        ("unwatched_ms", "rate", "low", "high", "said"),
        [
            # A step of 100 ms takes 99.2 without the hooks, give or take nothing: intervals reach that.
            ((99.2, 99.2, 99.2), 640, 640, 640 / 0.992, ""),
            # Or 98, or 80, which is the rate then.
            ((98, 98, 98), 640 / 0.98, 640 / 0.98, 640 / 0.98, UNWATCHED_RATE),
            ((80, 80, 80), 800, 800, 800, UNWATCHED_RATE),
            # Windows that lie apart say less than what one hook costs, of which 5 ms of a step are made here.
            ((60, 98, 110), 640, 640, 640 / 0.95, ""),
            # Or tell that it is something, which may be much: 10%, give or take 7.
            ((87.2, 90, 92.8), 640 / 0.9, 640 / (0.9 + 0.0695557), 640 / (0.9 - 0.0695557), UNWATCHED_RATE),
            # They hold what full ones do not.
            ((120, 120, 120), 640, 640, 640 / 0.95, ""),
        ],
    )
    def test_a_script_that_distributes_itself_has_its_own_cost_measured_within_the_launch(
        self, unwatched_ms: Sequence[float], rate: float, low: float, high: float, said: str
    ) -> None:
        found = analyse(specs.run({NATIVE: [launch(*in_turns(unwatched_ms), mode="native")]})).summary
        throughput = found.modes["native"].throughput
        assert (throughput.value, throughput.low, throughput.high) == pytest.approx((rate, low, high))
        told = [line for line in limits(found) if "watched" in line]
        assert "".join(told).startswith(said)
        assert bool(told) == bool(said)

    def test_steps_in_turns_tell_it_however_the_machine_changes_its_pace(self) -> None:
        # Without the hooks a step takes 9% less than a watched one of the same window, whatever that takes.
        steps, windows = [], []
        for turn, pace in enumerate((1.0, 1.4, 0.8), 1):
            of_full, of_both = ([100 / pace] * 4, [100 * pace, 91 * pace, 91 * pace, 100 * pace])
            for number, ablation, each in ((2 * turn, "full", of_full), (2 * turn + 1, "unwatched", of_both)):
                watched = [ms != 91 * pace for ms in each]
                steps += [step(ms, window=number, watched=on) for ms, on in zip(each, watched, strict=True)]
                windows.append(window(sum(each), window=number, round=turn, ablation=ablation))
        ranks = [rank(steps, windows, observer_ns=5e6, index=index, world_size=2) for index in range(2)]
        mode = analyse(specs.run({NATIVE: [launch(*ranks, mode="native")]})).summary.modes["native"]
        share = mode.observer_overhead
        assert (share.value, share.low, share.high) == pytest.approx((0.09, 0.09, 0.09))
        assert mode.throughput.value == pytest.approx(64 / (0.091 * 3.2 / 3))

    def test_a_speedup_is_that_of_the_rates_that_are_told(self) -> None:
        alone = replace(specs.mode_spec("single", 1), launcher=("torchrun",))
        run = specs.run(
            {
                alone: [launch(*in_turns((80, 80, 80), world_size=1), mode="single")],
                NATIVE: [launch(*in_turns((98, 98, 98)), mode="native")],
            }
        )
        modes = analyse(run).summary.modes
        assert modes["native"].speedup.value == pytest.approx(2 * 80 / 98)
        assert modes["native"].scaling_efficiency.value == pytest.approx(80 / 98)

    def test_where_watching_may_take_all_of_a_step_no_rate_is_known(self) -> None:
        # 53% of a step, give or take 52.
        found = analyse(specs.run({NATIVE: [launch(*in_turns((26, 47, 68)), mode="native")]})).summary
        share, rate = found.modes["native"].observer_overhead, found.modes["native"].throughput
        assert (share.low, share.high) == pytest.approx((0.0083, 1.0517), abs=1e-4)
        assert (rate.value, rate.reason) == (None, NOT_KNOWN)

    def test_a_control_that_failed_says_why(self) -> None:
        failed = launch(mode="bare", status="failed", reason="the script raised OSError")
        assert "OSError" in str(why_cost_unknown([failed], steps_of([failed], []), None))

    def test_without_a_control_nothing_disturbed_it(self) -> None:
        assert why_cost_unknown((), [], "others took 1.8 of 2 cores") == NO_CONTROL

    def test_one_launch_has_no_interval_and_proves_nothing(self) -> None:
        mode = watched(200, bare(100)).summary.modes["single"]
        assert mode.observer_overhead.value == pytest.approx(0.5)
        assert mode.observer_overhead.low is None
        assert mode.throughput.value == pytest.approx(160)

    def test_what_may_be_much_is_said(self) -> None:
        def said(observer_ns: float) -> str:
            run = records.run({"single": [launch(even_rank(100, observer_ns=observer_ns))]})
            return " ".join(limits(analyse(run).summary))

        assert "watching it may take as much as 10% of each step" in said(1e7)
        assert "watching it may take most of each step" in said(2e8)
        assert "watching" not in said(1e6)


def test_a_step_that_the_baseline_leaves_out_is_left_out_by_its_number() -> None:
    steps = [step(900 if number == 3 else 100, step=number) for number in range(1, 9)]
    edge = [step(100, step=number, epoch_edge=number == 3) for number in range(1, 9)]
    control = launch(rank(steps, [window(1600)]), mode="bare")
    (without,) = steps_of([control], [launch(rank(edge, [window(800)]))])
    (with_it,) = steps_of([control], [])
    assert (without.value, with_it.value) == (pytest.approx(0.1), pytest.approx(0.2))


def test_where_the_baseline_leaves_no_step_out_of_short_epochs_the_bare_script_leaves_none_out() -> None:
    """A bare launch counts no samples, by which it could tell that its epochs end with a small batch."""

    def epochs(*samples: int, mode: str) -> LaunchFacts:
        steps = [
            step(400 if number % 3 == 1 else 200, step=number, epoch_edge=number % 3 == 1, samples_drawn=drawn)
            for number, drawn in enumerate(4 * samples, 1)
        ]
        return launch(rank([replace(each, samples_entered=0) for each in steps], [window(3200)]), mode=mode)

    (found,) = steps_of([epochs(0, 0, 0, mode="bare")], [epochs(32, 32, 4, mode="single")])
    assert found.value == pytest.approx(0.8 / 3)


def test_on_a_gpu_steps_with_edges_among_them_are_held_against_none_without() -> None:
    even, edges = launch(ahead((200, None))), launch(ahead((200, 2)), mode="bare")
    assert steps_of([edges], [even]) == []
    assert why_cost_unknown([edges], [], None) == NO_STEADY_WINDOW
    assert [step.value for step in steps_of([edges], [launch(ahead((300, 2)))])] == [pytest.approx(0.02)]
    # The baseline's figure is then that of its first launch alone.
    assert steps_of([edges], [even, launch(ahead((300, 2)), number=2)]) == []


def test_what_windows_of_one_launch_differ_by_is_no_difference_of_launches() -> None:
    unsteady = rank(
        [step(ms, window=n) for n, ms in enumerate((80, 100, 120), 1)],
        [window(80), window(100, window=2), window(120, window=3)],
    )
    other = rank(
        [step(ms, window=n) for n, ms in enumerate((81, 101, 121), 1)],
        [window(81), window(101, window=2), window(121, window=3)],
    )
    control = [launch(unsteady, mode="bare"), launch(other, mode="bare")]
    assert launch_spread(steps_of(control, ())) == 0


@pytest.mark.parametrize(("milliseconds", "is_said"), [((100, 107), False), ((100, 120, 101), True), ((100,), False)])
def test_a_machine_that_did_not_keep_its_pace_is_named(milliseconds: tuple[float, ...], is_said: bool) -> None:
    summary = watched(100, bare(*milliseconds)).summary
    assert bool(summary.caveat) == is_said
    assert any("did not keep its pace" in text for text in limits(summary)) == is_said
    if is_said:
        assert "100 ms" in summary.caveat
        assert "120 ms" in summary.caveat


@pytest.mark.parametrize(
    ("faults", "is_malloc"), [((0, 20_000), True), ((0, 5_000), False), ((20_000, 0), False), ((None, None), False)]
)
def test_memory_that_malloc_gives_back_in_one_launch_is_told_from_a_machine_that_did_not_keep_its_pace(
    faults: tuple[int | None, ...], is_malloc: bool
) -> None:
    # A page takes 0.5 us at least: 20,000 of them 10 of the 20 ms, and 5,000 less than a quarter.
    control = []
    for ms, of_step in zip((100, 120), faults, strict=True):
        pages = None if of_step is None else 4 * of_step
        steps = [step(ms, window=number) for number in (1, 2) for _ in range(4)]
        windows = [window(4 * ms, window=number, num_steps=4, page_faults=pages) for number in (1, 2)]
        control.append(launch(rank(steps, windows), mode="bare"))
    summary = watched(100, control).summary
    assert ("what malloc does with freed memory" in summary.caveat) == is_malloc
    assert ("did not keep its pace" in summary.caveat) != is_malloc
    if is_malloc:
        assert "100 ms in one, with 0 page faults, and 120 ms in another, with 20,000" in summary.caveat


def test_a_baseline_that_runs_a_compiled_function_as_python_is_another_program_than_bare() -> None:
    conversion = Conversion(warnings=(f"loss_of calls Net: {RUNS_AS_PYTHON}",))
    shares = []
    for of in (None, conversion):
        (found,) = (run := watched(104, bare(99, 100, 101)).run).modes["single"]
        (only,) = found.ranks
        assert only.record is not None
        record = only.record if of is None else replace(only.record, conversion=of)
        single = replace(found, ranks=(replace(only, record=record),))
        run = replace(run, modes={**run.modes, "single": (single,)})
        shares.append(analyse(run).summary.modes["single"].observer_overhead)
    assert shares[0].value == pytest.approx(4 / 104)
    assert shares[1].value is None
    assert why_cost_unknown((), [shares[0]], None, is_other_program=True) == OTHER_PROGRAM
    assert why_cost_unknown((), [], None, is_other_program=True) == NO_CONTROL


def measured(dp_ms: float, status: str = "inactive") -> RunSummary:
    """Return one device with steps of 100 ms, dp with these, and ddp with as long ones as one device."""
    ddp = [even_rank(100, num_windows=2, index=index, world_size=2) for index in range(2)]
    why = {"status": status, "reason": "needs a GPU"} if status != "ok" else {}
    modes = {
        "single": [launch(even_rank(100, num_windows=2))],
        "dp": [launch(even_rank(dp_ms, num_windows=2), mode="dp", **why)],
        "ddp": [launch(*ddp, mode="ddp")],
    }
    return analyse(records.run(modes, {"ddp": 2})).summary


def test_the_mode_that_ran_the_same_program_was_watched_as_well() -> None:
    """So a launch that something disturbed is not taken for what watching costs."""
    modes = {
        "single": [launch(even_rank(120, num_windows=2))],
        "dp": [launch(even_rank(100, num_windows=2), mode="dp", status="inactive", reason="needs a GPU")],
    }
    run = replace(records.run(modes), bare=bare(100, 100, 100))
    share = analyse(run).summary.modes["single"].observer_overhead
    assert share.value == pytest.approx(10 / 120)
    assert share.low is not None
    assert share.low < 0
    alone = replace(records.run({"single": modes["single"]}), bare=bare(100, 100, 100))
    assert is_too_much(analyse(alone).summary.modes["single"].observer_overhead)


def test_one_launch_alone_does_not_tell_that_watching_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(records.run({"single": [launch(even_rank(120, num_windows=2))]}), bare=bare(100, 100, 100))
    once_more = replace(run, watched=(launch(even_rank(120, num_windows=2), mode="watched"),))
    cheap = replace(run, bare=bare(120, 120, 120))
    for of, is_clear in ((run, False), (once_more, True), (cheap, True)):
        monkeypatch.setattr("dpdoctor.rundir.read", lambda _, of=of: of)
        assert own_cost_is_clear(Path()) is is_clear


def test_rates_hold_what_launches_of_one_program_differ_by() -> None:
    found = measured(125)
    throughput, speedup = found.modes["ddp"].throughput, found.modes["ddp"].speedup
    assert throughput.scope == "run"
    assert (throughput.value, throughput.low) == pytest.approx((640, 640 * 0.8))
    assert speedup.low < 2 * 0.8
    # What lies within one launch does not widen.
    assert found.modes["ddp"].step.low == pytest.approx(0.1)


def test_it_is_said() -> None:
    said = [text for text in limits(measured(125)) if "same program" in text]
    assert len(said) == 1
    assert "20%" in said[0]


@pytest.mark.parametrize("found", [measured(100), measured(125, "ok")], ids=["alike", "another program"])
def test_nothing_is_widened_or_said(found: RunSummary) -> None:
    throughput = found.modes["ddp"].throughput
    assert throughput.low == throughput.high
    assert (found.caveat, same_program_words(found.modes)) == ("", "")


def test_steady_steps_with_edges_tell_nothing_of_those_without() -> None:
    few, most = (
        rank(
            [step(200 if edge else 100, window=n, epoch_edge=edge) for n in (1, 2) for edge in edges],
            [window(400 + 100 * sum(edges), window=n) for n in (1, 2)],
        )
        for edges in ((False, False, False, True), (False, True, True, True))
    )
    inactive = launch(most, mode="dp", status="inactive", reason="needs a GPU")
    found = analyse(records.run({"single": [launch(few)], "dp": [inactive]})).summary
    assert found.modes["dp"].step.value == pytest.approx(0.175)
    assert found.caveat == ""
    assert found.modes["single"].throughput.low == pytest.approx(320)
