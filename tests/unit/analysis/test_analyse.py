from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis import TRACE_MODE, Analysis, Figure, ModeSummary, RunSummary, analyse
from dpdoctor.analysis.analyse import (
    EDGES_ARE_STEADY,
    IS_PAST,
    LEFT_OUT,
    NO_OPTIMIZER,
    OF_WINDOWS,
    OTHERS,
    TRACES_ALONE,
    rank_traces,
    together,
)
from dpdoctor.analysis.base.stats import TOO_UNLIKE
from dpdoctor.analysis.base.summary import DeviceTime
from dpdoctor.analysis.samples import UNCOUNTED
from dpdoctor.digest import HOST, TIME, NotMeasured
from dpdoctor.records import PHASES, POINT_TO_POINT, Conversion, Launch, Rank, StepRecord, Strategy, Written
from tests.builders import runs, traced_runs
from tests.builders.records import ahead, even_rank, launch, rank, run, step, window
from tests.builders.specs import MS
from tests.builders.traced_cases import digest


def single(*launches: Launch, **spec: object) -> ModeSummary:
    return analyse(run({"single": launches}, **spec)).summary.modes["single"]


def numbers(figure: Figure) -> tuple[float | None, float | None, float | None]:
    return figure.value, figure.low, figure.high


@pytest.fixture
def two_modes() -> Analysis:
    """Return single with steps of 100 ms, and ddp whose second rank needs 125 ms instead of 100."""
    ddp = launch(even_rank(100, world_size=2), even_rank(125, index=1, world_size=2), mode="ddp")
    return analyse(run({"single": [launch(even_rank(100))], "ddp": [ddp]}, {"ddp": 2}))


class TestTwoModes:
    def test_throughput_is_of_all_ranks_at_the_pace_of_the_slowest(self, two_modes: Analysis) -> None:
        modes = two_modes.summary.modes
        assert modes["single"].throughput.value == pytest.approx(320)
        assert modes["ddp"].throughput.value == pytest.approx(2 * 4 * 32 / 0.5)
        assert modes["ddp"].step.value == pytest.approx(0.125)

    def test_speedup_and_efficiency_are_against_single(self, two_modes: Analysis) -> None:
        ddp = two_modes.summary.modes["ddp"]
        assert ddp.speedup.value == pytest.approx(1.6)
        assert ddp.scaling_efficiency.value == pytest.approx(0.8)
        assert two_modes.summary.modes["single"].speedup.reason == "this is the baseline"

    def test_where_windows_are_too_unlike_for_a_speedup_there_is_no_efficiency(self) -> None:
        unlike = rank([step(ms, window=n) for n, ms in ((1, 20), (2, 2000))], [window(20), window(2000, window=2)])
        launches = {"single": [launch(even_rank(100, num_windows=2))], "ddp": [launch(unlike, mode="ddp")]}
        ddp = analyse(run(launches)).summary.modes["ddp"]
        for figure in (ddp.speedup, ddp.scaling_efficiency):
            assert (figure.value, figure.reason) == (None, TOO_UNLIKE)

    def test_each_rank_has_its_own_step(self, two_modes: Analysis) -> None:
        ranks = two_modes.summary.modes["ddp"].ranks
        assert [r.step.value for r in ranks] == pytest.approx([0.1, 0.125])
        assert [(r.rank, r.steps_recorded, r.status) for r in ranks] == [(0, 4, "ok"), (1, 4, "ok")]

    def test_batch(self, two_modes: Analysis) -> None:
        batch = two_modes.summary.modes["ddp"].batch
        assert (batch.per_device, batch.global_, batch.rule) == (32, 64, "per-device")

    def test_samples_that_both_ranks_train_on_count_once(self) -> None:
        ranks = [even_rank(100, index=i, world_size=2, conversion=Conversion(same_samples=True)) for i in range(2)]
        found = analyse(run({"single": [launch(even_rank(100))], "ddp": [launch(*ranks, mode="ddp")]}, {"ddp": 2}))
        ddp = found.summary.modes["ddp"]
        assert (ddp.throughput.value, ddp.throughput_all_steps.value) == pytest.approx((320, 320))
        assert (ddp.batch.per_device, ddp.batch.global_) == (32, 32)
        assert (ddp.speedup.value, ddp.scaling_efficiency.value) == pytest.approx((1.0, 0.5))

    @pytest.mark.parametrize(
        ("conversion", "per_s", "why"),
        [
            (Conversion(copies=2), 320, None),
            (Conversion(copies=0), None, "some ranks train on the same samples"),
            (Conversion(drawn_alike=("torch", "numpy")), None, "what each step draws with torch and numpy, which"),
            (Conversion(same_samples=True, alike_by_seed=("numpy",)), None, "the script does not seed numpy"),
            (Conversion(same_samples=True, asks_rank="data.py:7"), None, "where data.py:7 asks for its rank"),
            (Conversion(strategies=(Strategy(name=POINT_TO_POINT),)), None, "stages of a pipeline"),
        ],
    )
    def test_groups_of_ranks_on_the_same_samples(self, conversion: Conversion, per_s: float | None, why: str) -> None:
        ranks = [even_rank(100, index=i, world_size=2, conversion=conversion) for i in range(2)]
        found = analyse(run({"ddp": [launch(*ranks, mode="ddp")]}, {"ddp": 2})).summary.modes["ddp"].throughput
        assert found.value == (per_s and pytest.approx(per_s))
        assert (why or "") in (found.reason or "")

    def test_the_summary_survives_json_under_its_names(self, two_modes: Analysis) -> None:
        data = msgspec.json.encode(two_modes.summary)
        assert msgspec.json.decode(data, type=RunSummary) == two_modes.summary
        ddp = msgspec.json.decode(data)["modes"]["ddp"]
        assert ddp["batch"]["global"] == 64
        assert set(ddp["phases"]) == set(PHASES)

    def test_what_was_run_is_told(self, two_modes: Analysis) -> None:
        summary, header = two_modes.summary, two_modes.run.header
        assert (summary.schema, summary.created, summary.command) == (2, header.created, header.command)
        assert summary.fingerprint == header.fingerprint
        assert (summary.script.path, summary.script.args) == (header.spec.target, header.spec.args)
        assert summary.script.sha256 == header.fingerprint.script_sha256


class TestSamples:
    STEPS = (step(100, samples_drawn=10, samples_entered=20),) * 4

    def test_indices_drawn_by_the_loader_come_first(self) -> None:
        mode = single(launch(rank(self.STEPS, [window(400)])))
        assert mode.throughput.value == pytest.approx(100)
        assert "loader" in mode.batch.source

    def test_without_a_loader_the_forwards_count(self) -> None:
        steps = [replace(s, samples_drawn=0) for s in self.STEPS]
        mode = single(launch(rank(steps, [window(400)])))
        assert mode.throughput.value == pytest.approx(200)
        assert "forward" in mode.batch.source

    def test_what_the_user_says_stands_above_both(self) -> None:
        mode = single(launch(rank(self.STEPS, [window(400)])), samples_per_step=7)
        assert mode.throughput.value == pytest.approx(70)
        assert mode.batch.per_device == 7
        assert mode.batch.source == "--samples-per-step"


class TestIntervals:
    def test_windows_of_one_launch_speak_of_that_launch(self) -> None:
        # Steps of 100 and 110 ms: mean 105, standard deviation 7.0711, t(0.975, 1) = 12.7062, half width 63.531.
        steps = [step(100), step(110, window=2)]
        mode = single(launch(rank(steps, [window(100), window(110, window=2)])))
        assert numbers(mode.step) == pytest.approx((0.105, 0.105 - 0.063531, 0.105 + 0.063531), abs=1e-6)
        assert (mode.step.n, mode.step.scope, mode.launches) == (2, "run", 1)

    def test_several_launches_speak_of_launches(self) -> None:
        # Launches with means 0.1 and 0.11 s: the same interval, however many windows each has.
        launches = [launch(even_rank(ms, num_windows=5), number=n) for n, ms in enumerate((100, 110), 1)]
        mode = single(*launches, repeat=2)
        assert numbers(mode.step) == pytest.approx((0.105, 0.105 - 0.063531, 0.105 + 0.063531), abs=1e-6)
        assert (mode.step.n, mode.step.scope, mode.launches) == (2, "launches", 2)
        assert mode.wall_s == pytest.approx(20)

    def test_one_launch_of_a_calibrated_workload_speaks_of_launches_too(self) -> None:
        one = launch(rank([step(100), step(110, window=2)], [window(100), window(110, window=2)]))
        known, within = run({"single": [one]}), single(one)
        header = replace(known.header, launch_spread={"single": 0.1})
        found = analyse(replace(known, header=header)).summary.modes["single"]
        assert found.step.value == within.step.value
        assert (found.step.scope, found.throughput.scope) == ("calibrated", "calibrated")
        half = within.step.high - within.step.value
        assert found.step.high - found.step.value == pytest.approx(np.hypot(half, 0.1 * within.step.value))

    def test_several_launches_speak_for_themselves_though_the_workload_is_calibrated(self) -> None:
        launches = [launch(even_rank(ms), number=n) for n, ms in enumerate((100, 110), 1)]
        known = run({"single": launches}, repeat=2)
        header = replace(known.header, launch_spread={"single": 0.1})
        found = analyse(replace(known, header=header)).summary.modes["single"]
        assert found.step == single(*launches, repeat=2).step

    def test_a_launch_that_measured_nothing_is_no_launch_of_the_figure(self) -> None:
        failed = launch(number=2, status="failed", reason="CUDA out of memory")
        mode = single(launch(even_rank(100, num_windows=3)), failed, repeat=2)
        assert (mode.step.n, mode.step.scope) == (3, "run")
        assert (mode.status, mode.reason) == ("failed", "CUDA out of memory")


class TestVariedBatches:
    """Steps that take 10 ms and 1 ms per sample, in windows of four."""

    @staticmethod
    def by_size(sizes: Sequence[int], **fields: object) -> Rank:
        steps = [
            step(10 + size, samples_drawn=size, samples_entered=size, window=1 + i // 4) for i, size in enumerate(sizes)
        ]
        numbers = sorted({s.window for s in steps})
        lengths = {n: sum(s.duration_ns for s in steps if s.window == n) / MS for n in numbers}
        return rank(steps, [window(lengths[n], window=n) for n in numbers], **fields)

    def test_throughput_is_all_samples_over_all_seconds(self) -> None:
        mode = single(launch(self.by_size([4, 4, 4, 4, 60, 60, 60, 60])))
        assert mode.throughput.value == pytest.approx(4 * 64 / 0.336)
        assert mode.throughput_all_steps.value == mode.throughput.value
        assert mode.batch.global_ / mode.step.value == pytest.approx(mode.throughput.value)

    @given(st.lists(st.integers(1, 64), min_size=8, max_size=24), st.randoms(use_true_random=False))
    def test_two_devices_of_the_same_steps_are_twice_as_fast_in_whatever_windows(
        self, sizes: list[int], random: Random
    ) -> None:
        shuffled = random.sample(sizes, len(sizes))
        ddp = launch(*(self.by_size(shuffled, index=i, world_size=2) for i in range(2)), mode="ddp")
        modes = analyse(run({"single": [launch(self.by_size(sizes))], "ddp": [ddp]}, {"ddp": 2})).summary.modes
        speedup = modes["ddp"].speedup
        assert speedup.reason == TOO_UNLIKE if speedup.value is None else speedup.value == pytest.approx(2)
        assert modes["ddp"].step.value == pytest.approx(modes["single"].step.value)

    def test_phases_still_add_up_to_the_step(self) -> None:
        mode = single(launch(self.by_size([4, 4, 4, 4, 60, 60])))
        known = [figure.value for figure in mode.phases.values() if figure.value is not None]
        assert sum(known) == pytest.approx(mode.step.value)

    def test_a_launch_counts_once_however_its_windows_differ(self) -> None:
        launches = [launch(self.by_size(sizes), number=n) for n, sizes in enumerate(([4] * 4 + [60] * 4, [10] * 8), 1)]
        mode = single(*launches, repeat=2)
        assert mode.throughput.value == pytest.approx((4 * 64 / 0.336 + 500) / 2)
        assert (mode.throughput.n, mode.throughput.scope) == (2, "launches")


@pytest.mark.parametrize(
    ("num_steps", "go_on", "ended"),
    [
        (4, False, "which are too few to warm up, prove and trace"),
        (5, False, "before its trace"),
        (5, True, "before its trace: a job that goes on is run once"),
    ],
)
def test_why_there_is_no_trace_of_what_ended_before_it(num_steps: int, go_on: bool, ended: str) -> None:
    mode = single(launch(even_rank(100, num_steps=num_steps, ending="returned")), go_on=go_on)
    assert mode.trace_reason == f"training ended after {num_steps} steps, {ended}"


def test_a_trace_that_could_not_be_kept_is_told_where_it_is_missing() -> None:
    lost = [even_rank(100, index=i, world_size=2, trace_lost="OSError: no space left") for i in range(2)]
    said = "the trace of rank {} could not be kept: OSError: no space left"
    mode = analyse(run({"ddp": [launch(*lost, mode="ddp")]}, {"ddp": 2})).summary.modes["ddp"]
    assert mode.trace_reason == said.format(0)
    assert not mode.conversion.warnings
    one = [replace(lost[0], digest=digest()), lost[1]]
    mode = analyse(run({"ddp": [launch(*one, mode="ddp")]}, {"ddp": 2})).summary.modes["ddp"]
    assert not mode.trace_reason
    assert said.format(1) in mode.conversion.warnings


class TestEpoch:
    STEADY = (step(100),) * 3
    EDGE = step(300, epoch_edge=True)

    def test_steady_steps_and_one_edge(self) -> None:
        mode = single(launch(rank([*self.STEADY, self.EDGE], [window(600)], steps_per_epoch=100)))
        assert mode.epoch_s.value == pytest.approx(99 * 0.1 + 0.3)
        assert mode.epoch_s.reason is None
        assert mode.throughput.value == pytest.approx(320)
        # Of an epoch, not of the window, a quarter of whose steps is an edge.
        assert mode.throughput_all_steps.value == pytest.approx(100 * 32 / (99 * 0.1 + 0.3))
        assert mode.throughput_all_steps.reason is None

    def test_an_epoch_has_as_many_edges_as_evaluations_run_in_it(self) -> None:
        # One step in four has an evaluation.
        steps = [replace(s, step=n) for n, s in enumerate([*self.STEADY, self.EDGE] * 2, 1)]
        mode = single(launch(rank(steps, [window(1200)], steps_per_epoch=100)))
        assert mode.epoch_s.value == pytest.approx(75 * 0.1 + 25 * 0.3)
        assert mode.throughput_all_steps.value == pytest.approx(8 * 32 / 1.2)

    def test_where_edges_are_steady_they_are_in_the_step(self) -> None:
        epoch = [replace(self.EDGE, samples_drawn=32), *(step(100, samples_drawn=n) for n in (32, 32, 4))]
        mode = single(launch(rank(2 * epoch, [window(1200)], steps_per_epoch=4)))
        assert mode.edges_are_steady
        assert mode.epoch_s.value == pytest.approx(0.6)
        assert mode.throughput_all_steps.value == mode.throughput.value == pytest.approx(100 / 0.6)

    def test_where_an_epoch_has_no_known_length_edges_count_as_they_were_seen(self) -> None:
        mode = single(launch(rank([*self.STEADY, self.EDGE], [window(600)])))
        assert mode.throughput_all_steps.value == pytest.approx(4 * 32 / 0.6)
        assert mode.throughput_all_steps.reason == f"{OF_WINDOWS}; {mode.epoch_s.reason}"

    def test_without_an_edge_its_cost_is_said_to_be_missing(self) -> None:
        mode = single(launch(rank(self.STEADY, [window(300)], steps_per_epoch=100)))
        assert mode.epoch_s.value == pytest.approx(10)
        assert "edge is left out" in str(mode.epoch_s.reason)

    def test_the_interval_scales_with_the_steps_and_moves_with_the_edge(self) -> None:
        steps = [step(100), step(110, window=2), replace(self.EDGE, window=2)]
        mode = single(launch(rank(steps, [window(100), window(410, window=2)], steps_per_epoch=11)))
        assert numbers(mode.epoch_s) == pytest.approx([10 * x + 0.3 for x in numbers(mode.step)])

    def test_on_a_gpu_an_edge_takes_what_usual_steps_leave_of_its_window(self) -> None:
        # 20 ms a step; of the second window 300 - 9 * 20 are the edge's, whatever its host did meanwhile.
        mode = single(launch(ahead((200, None), (300, 102), steps_per_epoch=100)))
        assert mode.step.value == pytest.approx(0.02)
        assert mode.throughput.value == pytest.approx(32 / 0.02)
        assert mode.epoch_s.value == pytest.approx(99 * 0.02 + 0.12)
        assert mode.throughput_all_steps.value == pytest.approx(100 * 32 / (99 * 0.02 + 0.12))
        assert EDGES_ARE_STEADY not in mode.conversion.warnings

    def test_on_a_gpu_windows_that_all_have_an_edge_are_taken_whole_which_is_said(self) -> None:
        mode = single(launch(ahead((300, 102), (300, 302), steps_per_epoch=10)))
        assert mode.step.value == pytest.approx(0.03)
        assert mode.epoch_s.value == pytest.approx(0.3)
        assert mode.conversion.warnings == (EDGES_ARE_STEADY,)

    def test_on_a_gpu_traced_steps_with_an_edge_tell_nothing_of_the_profiler(self) -> None:
        made = ahead((200, None), (300, 102))
        windows = (made.windows[0], replace(made.windows[1], kind="trace"))
        mode = single(launch(replace(made, windows=windows)))
        assert "in the traced steps" in str(mode.profiler_overhead.reason)

    @pytest.mark.parametrize(("length", "reason"), [(None, "length of an epoch"), (10**10, "no real end")])
    def test_unknown_without_a_length_that_ends(self, length: int | None, reason: str) -> None:
        mode = single(launch(rank(self.STEADY, [window(300)], steps_per_epoch=length)))
        assert mode.epoch_s.value is None
        assert reason in str(mode.epoch_s.reason)


class TestEdgesOfOneSide:
    """Steady steps with edges among them are held against none without."""

    WITHOUT, WITH = ahead((200, None), (300, 102)), ahead((300, 102), (300, 102))
    # Of the one a quarter are edges, of the other three, so that they are what is usual.
    FEW = rank([step(100, epoch_edge=place == 3) for place in range(4)], [window(400)])
    MOST = rank([step(100, epoch_edge=place != 3) for place in range(4)], [window(400)])

    @pytest.mark.parametrize(("single", "ddp"), [(WITHOUT, WITH), (WITH, WITHOUT), (FEW, MOST), (MOST, FEW)])
    def test_no_speedup_is_known(self, single: Rank, ddp: Rank) -> None:
        modes = analyse(run({"single": [launch(single)], "ddp": [launch(ddp, mode="ddp")]})).summary.modes
        assert modes["ddp"].edges_are_steady is not modes["single"].edges_are_steady
        assert modes["ddp"].throughput.value is not None
        told = {modes["ddp"].speedup.reason, modes["ddp"].scaling_efficiency.reason, modes["ddp"].waterfall_reason}
        assert len(told) == 1
        assert "longer epochs, or fewer --steps" in str(told)

    @pytest.mark.parametrize("both", [WITHOUT, WITH, FEW, MOST])
    def test_those_of_one_kind_are_compared(self, both: Rank) -> None:
        modes = analyse(run({"single": [launch(both)], "ddp": [launch(both, mode="ddp")]})).summary.modes
        assert modes["ddp"].speedup.value == pytest.approx(1)

    @pytest.mark.parametrize(("order", "seconds"), [((WITH, WITHOUT, WITHOUT), 0.02), ((MOST, FEW, FEW), 0.1)])
    def test_a_launch_with_them_is_left_out_where_others_have_none(self, order: tuple, seconds: float) -> None:
        mode = single(*(launch(of, number=number) for number, of in enumerate(order, 1)), repeat=3)
        assert (mode.step.value, mode.step.n, mode.launches) == (pytest.approx(seconds), 2, 3)
        assert mode.ranks[0].step.value == pytest.approx(seconds)
        assert not mode.edges_are_steady
        assert mode.conversion.warnings == (LEFT_OUT.format("1 launch"),)

    def test_what_rules_read_is_of_the_same_launches(self) -> None:
        launches = [launch(of, number=number) for number, of in enumerate((self.WITH, self.WITHOUT), 1)]
        facts = analyse(run({"single": launches}, repeat=2)).facts["single"]
        assert [made.record.launch for made, _ in facts.windows] == [2]
        assert [made.record.launch for made, _ in facts.windows_with_edges] == [1, 1, 2, 2]

    def test_a_launch_that_failed_leaves_out_none(self) -> None:
        failed = launch(self.WITHOUT, status="failed", reason="out of memory")
        mode = single(failed, launch(self.WITH, number=2), repeat=2)
        assert (mode.step.value, mode.edges_are_steady) == (pytest.approx(0.03), True)


def test_phases_are_means_over_ranks() -> None:
    fast = rank([step(100, phases_ms={"forward": 100})], [window(100)], world_size=2)
    slow = rank([step(100, phases_ms={"data_wait": 60, "forward": 40})], [window(100)], index=1, world_size=2)
    mode = analyse(run({"ddp": [launch(fast, slow)]}, {"ddp": 2})).summary.modes["ddp"]
    assert {name: f.value for name, f in mode.phases.items() if f.value} == pytest.approx(
        {"data_wait": 0.03, "forward": 0.07}
    )


def test_what_a_step_is_and_its_samples_are_unknown_where_the_model_is_made_anew() -> None:
    steps = (step(100, phases_ms={"backward": 60, "other": 40}),)
    mode = single(launch(rank(steps, [window(100)], conversion=Conversion(optimizers=("SGD",), made_anew="Why"))))
    assert {name for name, figure in mode.phases.items() if figure.value is None} == {"forward", "other"}
    assert mode.phases["other"].reason == "Why"
    assert mode.throughput.value is None
    assert str(mode.throughput.reason).startswith("Why")
    assert mode.step.value == pytest.approx(0.1)


class TestWithoutOptimizer:
    STEPS = (step(100, phases_ms={"forward": 60, "other": 40}),)

    def optimizer(self, steps: Sequence[StepRecord], **conversion: object) -> Figure:
        return single(launch(rank(steps, [window(100)], conversion=Conversion(**conversion)))).phases["optimizer"]

    def test_its_phase_is_unknown_not_nothing(self) -> None:
        found = self.optimizer(self.STEPS)
        assert (found.value, found.reason) == (None, NO_OPTIMIZER)
        assert "`other`" in NO_OPTIMIZER

    def test_with_one_the_phase_is_what_was_measured(self) -> None:
        assert self.optimizer(self.STEPS, optimizers=("SGD",)).value == 0

    def test_one_that_is_gone_by_the_end_was_still_timed(self) -> None:
        found = self.optimizer([step(100, phases_ms={"forward": 60, "optimizer": 40})])
        assert found.value == pytest.approx(0.04)


def test_profiler_cost_is_traced_over_untraced() -> None:
    steps = [step(100), step(130, window=2)]
    mode = single(launch(rank(steps, [window(100), window(130, window=2, kind="trace")])))
    assert mode.profiler_overhead.value == pytest.approx(1.3)
    assert mode.step.value == pytest.approx(0.1)


def test_observer_cost_is_that_of_the_worst_rank() -> None:
    ranks = [even_rank(100, index=i, world_size=2, observer_ns=ns) for i, ns in enumerate((5e5, 1e6))]
    mode = analyse(run({"ddp": [launch(*ranks)]}, {"ddp": 2})).summary.modes["ddp"]
    assert mode.observer_overhead.value == pytest.approx(0.01)


class TestMissing:
    def test_one_rank_of_two_is_no_throughput(self) -> None:
        lost = launch(even_rank(100, world_size=2), mode="ddp")
        modes = analyse(run({"single": [launch(even_rank(100))], "ddp": [lost]}, {"ddp": 2})).summary.modes
        reason = "rank 1 left nothing"
        for figure in (modes["ddp"].throughput, modes["ddp"].step, modes["ddp"].speedup, modes["ddp"].epoch_s):
            assert (figure.value, figure.reason) == (None, reason)
        assert modes["ddp"].batch.per_device is None
        (own,) = modes["ddp"].ranks
        assert own.step.value is None
        assert "complete on every rank" in str(own.step.reason)

    def test_of_many_ranks_that_are_lost_the_first_is_named(self) -> None:
        lost = launch(*(even_rank(100, index=index, world_size=4) for index in (0, 2)), mode="ddp")
        mode = analyse(run({"ddp": [lost]}, {"ddp": 4})).summary.modes["ddp"]
        assert re.findall(r"\d+ ranks|rank \d+", str(mode.throughput.reason)) == ["2 ranks", "rank 1"]

    def test_a_rank_that_died_early_is_named(self) -> None:
        dead = replace(even_rank(100, index=1), record=None, steps=(), windows=())
        failed = launch(even_rank(100, world_size=2), dead, status="failed", reason="rank 1 was killed", failed_rank=1)
        mode = analyse(run({"ddp": [failed]}, {"ddp": 2})).summary.modes["ddp"]
        assert (mode.status, mode.throughput.reason) == ("failed", "rank 1 was killed")
        assert [(r.status, r.stage, r.steps_recorded) for r in mode.ranks] == [("ok", "", 4), ("failed", "starting", 0)]

    def test_what_was_measured_before_a_launch_failed_is_no_result(self) -> None:
        mode = single(launch(even_rank(100), status="failed", reason="parameters differ at the end"))
        assert (mode.throughput.value, mode.throughput.reason) == (None, "parameters differ at the end")
        assert mode.ranks[0].step.value == pytest.approx(0.1)

    def test_samples_that_could_not_be_counted_give_no_throughput(self) -> None:
        steps = [step(100, samples_drawn=0, samples_entered=entered) for entered in (4, 4, 0, 4)]
        mode = single(launch(rank(steps, [window(400)])))
        assert (mode.throughput.value, mode.batch.per_device) == (None, None)
        assert mode.throughput.reason == UNCOUNTED.format("")
        assert "--samples-per-step" in UNCOUNTED
        assert mode.step.value == pytest.approx(0.1)

    def test_a_mode_that_never_began_is_skipped(self) -> None:
        modes = analyse(run({"single": [launch(even_rank(100))], "ddp": []}, {"ddp": 2})).summary.modes
        reason = "the run ended before this mode began"
        assert (modes["ddp"].status, modes["ddp"].reason, modes["ddp"].launches) == ("skipped", reason, 0)
        assert (modes["ddp"].speedup.value, modes["ddp"].speedup.reason) == (None, reason)

    def test_without_a_baseline_there_is_no_speedup(self) -> None:
        mode = analyse(run({"ddp": [launch(even_rank(100))]})).summary.modes["ddp"]
        assert mode.throughput.value == pytest.approx(320)
        assert (mode.speedup.value, mode.speedup.reason) == (None, "no baseline")

    @pytest.mark.parametrize("ranks", [(), (even_rank(100),)])
    def test_a_baseline_that_failed_is_nothing_to_compare_with(self, ranks: tuple[Rank, ...]) -> None:
        failed = launch(*ranks, status="failed", reason="the script raised KeyError")
        modes = analyse(run({"single": [failed], "ddp": [launch(even_rank(100))]})).summary.modes
        for figure in (modes["ddp"].speedup, modes["ddp"].scaling_efficiency):
            assert (figure.value, figure.reason) == (None, "the baseline failed")

    def test_what_was_not_recorded_has_a_reason(self) -> None:
        mode = single(launch(even_rank(100)))
        assert mode.profiler_overhead.reason == "no trace was recorded"
        assert "calibrated" in str(mode.observer_overhead.reason)


def test_a_run_of_traces_alone_says_what_it_is_and_of_how_many_ranks() -> None:
    digests = [replace(digest, world_size=128) for digest in traced_runs.late_rank()]
    mode = traced_runs.trace_run(*digests).summary.modes[TRACE_MODE]
    assert mode.world_size == 128
    assert {mode.throughput.reason, mode.step.reason, mode.profiler_overhead.reason} == {TRACES_ALONE}


def test_of_several_traces_of_a_rank_each_is_no_rank_of_its_own() -> None:
    digests = [*traced_runs.late_rank(2, 1), *traced_runs.late_rank(2, 1)]
    assert traced_runs.trace_run(*digests).summary.modes["trace"].world_size == 2


WHOLE = DeviceTime(
    device=0, compute_s=0.046, exposed_comm_s=0.031, h2d_s=0.004, copy_s=0.001, idle_s=0.018, total_s=0.1, comm_s=0.062
)


def test_every_device_of_every_rank() -> None:
    first, second = traced_runs.late_rank(2, 1)
    second = replace(second, devices=(traced_runs.device(0), traced_runs.device(1)), notes=("a note",))
    found = rank_traces([second, first])
    assert [trace.rank for trace in found] == [1, 0]
    assert found[0].devices == (WHOLE, replace(WHOLE, device=1))
    assert (found[0].source, found[0].damage, found[0].notes) == (second.source, None, ("a note",))


def test_a_training_thread_has_no_device_number() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    (found,) = rank_traces([replace(digest, devices=(traced_runs.device(HOST),), damage="cut short")])
    assert found.devices == (replace(WHOLE, device=None),)
    assert found.damage == "cut short"


def test_why_a_trace_does_not_tell_where_time_went_is_among_its_notes() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    untold = replace(digest, devices=(), not_measured=(NotMeasured(what=TIME, reason="the file is not whole"),))
    (found,) = rank_traces([untold])
    assert found.notes == (*digest.notes, "the file is not whole")


def test_a_mode_that_failed_has_none() -> None:
    modes = traced_runs.traced_profile().summary.modes
    assert [len(modes[name].traces) for name in ("single", "ddp", "fsdp")] == [0, 2, 0]
    assert all(mode.traces == () for mode in runs.rankless_run().summary.modes.values())


def test_ranks_that_go_over_to_exchange_otherwise_are_measured_after_it() -> None:
    counts = {1: 2, 2: 2, 3: 1, 4: 1}
    steps = [step(100 * count, window=number, collectives=count) for number, count in counts.items() for _ in range(4)]
    windows = [window(400 * count, window=number, first_step=4 * number) for number, count in counts.items()]
    mode = analyse(run({"native": [launch(rank(steps, windows))]})).summary.modes["native"]
    assert mode.step.value == pytest.approx(0.1)
    assert mode.conversion is not None
    (said,) = mode.conversion.warnings
    assert said.startswith("by step 12 ranks have gone over from 2.00 collectives in a step to 1.00 collectives")
    assert said.endswith(IS_PAST)


def test_other_worlds_that_trained_are_a_limit() -> None:
    mode = analyse(run({"native": [launch(even_rank(100), other_worlds="1 rank")]})).summary.modes["native"]
    assert mode.conversion is not None
    assert mode.conversion.warnings == (OTHERS.format("1 rank"),)


@pytest.mark.parametrize(
    ("changes", "over"),
    [
        (("new", "changed"), "new"),
        (("new", "removed"), None),
        (("new", "removed", "new"), "new"),
        (("changed", "removed"), "removed"),
        (("removed", "new"), "changed"),
        (("changed", "changed"), "changed"),
    ],
)
def test_what_launches_changed_is_told_against_what_was_there_before_them(
    changes: tuple[str, ...], over: str | None
) -> None:
    files = [Written(path="/home/me/log.txt", change=change, num_bytes=n) for n, change in enumerate(changes)]
    told = (Written(path="/home/me/log.txt", change=over, num_bytes=len(changes) - 1),) if over else ()
    assert together(files) == told

    launches = [launch(even_rank(100), begin_ns=n, files_changed=(file,)) for n, file in enumerate(files)]
    assert single(*reversed(launches)).files_changed == told
