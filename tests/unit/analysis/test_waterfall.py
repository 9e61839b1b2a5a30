from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis import (
    WATERFALL_TERMS,
    AblationSummary,
    Figure,
    LoaderPrediction,
    LoaderSummary,
    ModeSummary,
    Waterfall,
    analyse,
)
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.cross_rank import compare_ranks
from dpdoctor.analysis.waterfall import (
    NO_ABLATIONS,
    NO_MORE,
    ONE_PROCESS,
    Side,
    rotating_wait,
    told_apart,
    with_waterfall,
)
from tests.builders import traced_runs
from tests.builders.records import even_rank, launch, run
from tests.builders.simulated_ranks import digests, lockstep
from tests.builders.specs import MS

UNKNOWN = Figure(value=None, unit="s", reason="not measured here")
MEASURED = analyse(run({"single": [launch(even_rank(100))]})).summary.modes["single"]
TIMES = st.floats(0.001, 1.0)


def seconds(value: float, half: float = 0.0) -> Figure:
    return Figure(value=value, low=value - half, high=value + half, n=9, unit="s")


def ablation(gain: float, step: float) -> AblationSummary:
    return AblationSummary(gain=seconds(gain), share=Figure(value=gain, unit="ratio"), step=seconds(step))


def loader(control_step: float) -> LoaderSummary:
    """Return a loader of which only the control matters."""
    return LoaderSummary(
        line="train.py:30",
        dataset="FakeData",
        num_workers=2,
        prefetch_factor=2,
        pin_memory=False,
        persistent_workers=False,
        batch_bytes=None,
        fetch=UNKNOWN,
        fetch_cv=None,
        cpu_ratio=UNKNOWN,
        collate=UNKNOWN,
        wait=UNKNOWN,
        ready_batches={},
        transfer=UNKNOWN,
        epoch_start=UNKNOWN,
        transforms=(),
        workers=(),
        baseline_same_workers=LoaderPrediction(
            num_workers=4, prefetch_factor=2, step=seconds(control_step), wait=seconds(0)
        ),
    )


def mode(step: float, *, num_devices: int = 2, rule: str = "per-device", **fields: object) -> ModeSummary:
    """Return a mode of that step, compared with the baseline; one process per device unless `world_size` says else."""
    known = {
        "step": seconds(step),
        "num_devices": num_devices,
        "world_size": num_devices,
        "scaling_efficiency": Figure(value=0.5, unit="ratio"),
        "batch": replace(MEASURED.batch, rule=rule),
    }
    return replace(MEASURED, **{**known, **fields})


def single(step: float, waits: float, **fields: object) -> ModeSummary:
    return mode(step, num_devices=1, ablations={"cached_batches": ablation(waits, step - waits)}, **fields)


def planted(
    one: ModeSummary, terms: Mapping[str, float], *, num: int = 2, rule: str = "per-device", imbalance: float = 0.0
) -> Side:
    """Return the mode of which one device's step and these terms are the truth; `imbalance` is that part of peers."""
    part = 1 / num if rule == "global" else 1.0
    step, computes = one.step.value or 0.0, one.ablations["cached_batches"].step.value or 0.0
    waits = part * (step - computes) + terms["loader_processes"] + terms["data_loading"]
    rotating = terms["slower_ranks"] - imbalance
    alone = part * computes + terms["slower_compute"] + terms["overhead"] + imbalance
    measured = part * step + sum(terms.values())
    made = mode(
        measured,
        num_devices=num,
        rule=rule,
        loader=loader(step + terms["loader_processes"] / part),
        ablations={
            "cached_batches": ablation(waits, measured - waits),
            "no_comm": ablation(terms["transfer"] + rotating, measured - terms["transfer"] - rotating),
            "no_data_no_comm": ablation(measured - alone, alone),
        },
    )
    return Side(mode=made, imbalance=seconds(imbalance), rotating=seconds(rotating))


def fall(found: Side, one: ModeSummary | None, copies: Side | None = None) -> Waterfall:
    made = with_waterfall(found, one, copies).waterfall
    assert made is not None
    return made


def values(made: Waterfall) -> dict[str, float | None]:
    return {name: figure.value for name, figure in made.terms.items()}


def total(made: Waterfall) -> float:
    return sum(figure.value or 0.0 for figure in (made.ideal, *made.terms.values()))


class TestPlanted:
    @given(
        step=TIMES,
        waiting=st.floats(0, 1),
        terms=st.fixed_dictionaries({name: st.floats(-0.2, 1.0) for name in WATERFALL_TERMS}),
        imbalance=st.floats(0, 0.2),
        num=st.integers(2, 8),
        rule=st.sampled_from(["per-device", "global"]),
    )
    def test_every_term_comes_back_and_they_add_up(
        self, *, step: float, waiting: float, terms: dict[str, float], imbalance: float, num: int, rule: str
    ) -> None:
        one = single(step, waiting * step)
        copies = planted(one, {**terms, "overhead": 0.0}, num=num, rule=rule, imbalance=imbalance)
        for found, expected in (
            (copies, {**terms, "overhead": None}),
            (planted(one, terms, num=num, rule=rule, imbalance=imbalance), terms),
        ):
            made = fall(found, one, copies)
            assert values(made) == pytest.approx(expected, abs=1e-9)
            assert made.ideal.value == pytest.approx(step if rule == "per-device" else step / num)
            assert total(made) == pytest.approx(found.mode.step.value, abs=1e-9)

    @given(
        step=TIMES,
        unknown=st.sets(st.sampled_from(["cached_batches", "no_comm", "no_data_no_comm", "loader", "trace"])),
    )
    def test_they_add_up_whatever_is_unknown(self, step: float, unknown: set[str]) -> None:
        one = single(step, step / 4)
        found = planted(one, dict.fromkeys(WATERFALL_TERMS, step / 10))
        known = {name: kept for name, kept in found.mode.ablations.items() if name not in unknown}
        changed = replace(found.mode, ablations=known, loader=None if "loader" in unknown else found.mode.loader)
        made = fall(replace(found, mode=changed, rotating=UNKNOWN if "trace" in unknown else found.rotating), one)
        assert total(made) == pytest.approx(found.mode.step.value, abs=1e-9)
        for name, figure in made.terms.items():
            told = figure.value is not None or name in made.sources["other"] or "in contention" in made.sources[name]
            assert told


NOTHING = dict.fromkeys(WATERFALL_TERMS, 0.0)


class TestDoubleCounting:
    def test_what_one_device_waits_for_data_is_in_the_ideal_already(self) -> None:
        one = single(0.100, 0.040)
        made = fall(planted(one, NOTHING), one)
        assert (made.ideal.value, made.terms["data_loading"].value) == pytest.approx((0.100, 0.0))

    def test_what_more_loader_processes_give_is_not_the_modes_merit(self) -> None:
        # Each rank waits as long as one device does; one device with as many loader processes would not wait.
        one = single(0.100, 0.040)
        made = fall(planted(one, {**NOTHING, "loader_processes": -0.040, "data_loading": 0.040}), one)
        assert made.measured.value == pytest.approx(0.100)
        assert (made.terms["loader_processes"].value, made.terms["data_loading"].value) == pytest.approx((-0.04, 0.04))

    def test_without_workers_no_rank_has_more_loader_processes_than_one_device(self) -> None:
        one = single(0.100, 0.040)
        found = planted(one, {**NOTHING, "data_loading": 0.010})
        assert found.mode.loader is not None
        without = replace(found.mode.loader, num_workers=0, prefetch_factor=None, baseline_same_workers=None)
        made = fall(replace(found, mode=replace(found.mode, loader=without)), one)
        assert (made.terms["loader_processes"].value, made.sources["loader_processes"]) == (0.0, NO_MORE)
        assert made.terms["data_loading"].value == pytest.approx(0.010)
        assert "unknown" not in made.sources["other"]

    @given(simulated=st.floats(-0.05, 0.05), half=st.floats(0, 0.02), waits=st.floats(-0.05, 0.05))
    def test_waiting_as_it_was_measured_knows_nothing_of_what_was_simulated(
        self, simulated: float, half: float, waits: float
    ) -> None:
        one = single(0.100, 0.040)
        loader = replace(seconds(simulated, half), low=simulated - 2 * half)
        rest = stats.combination([(1, seconds(waits, 0.003)), (-1, loader)], "s")
        made = fall(planted(one, NOTHING), one)
        made = replace(made, terms={**made.terms, "loader_processes": loader, "data_loading": rest})
        told = told_apart(made)["data_loading"]
        assert (told.value, told.low, told.high) == pytest.approx((waits, waits - 0.003, waits + 0.003), abs=1e-9)

    def test_a_slow_rank_is_in_peers_and_not_in_contention(self) -> None:
        one = single(0.100, 0.0)
        made = fall(planted(one, {**NOTHING, "slower_ranks": 0.030}, imbalance=0.030), one)
        assert values(made) == pytest.approx({**NOTHING, "slower_ranks": 0.030, "overhead": None}, abs=1e-12)

    def test_ranks_that_are_late_by_turns_are_in_peers_and_not_in_transfer(self) -> None:
        one = single(0.100, 0.0)
        made = fall(planted(one, {**NOTHING, "slower_ranks": 0.030, "transfer": 0.010}), one)
        assert (made.terms["slower_ranks"].value, made.terms["transfer"].value) == pytest.approx((0.030, 0.010))


class TestUnknown:
    ONE = single(0.100, 0.040)

    def test_without_a_trace_waiting_stays_in_transfer_and_that_is_said(self) -> None:
        found = planted(self.ONE, {**NOTHING, "slower_ranks": 0.030, "transfer": 0.010})
        made = fall(replace(found, rotating=UNKNOWN), self.ONE)
        assert made.terms["slower_ranks"].value is None
        assert made.terms["transfer"].value == pytest.approx(0.040)
        assert "occasional stragglers" in made.sources["transfer"]

    def test_without_the_ablation_the_phases_tell_the_wait_of_a_host(self) -> None:
        waiting = {**MEASURED.phases, "data_wait": seconds(0.05)}
        found = Side(mode=mode(0.150, phases=waiting), imbalance=UNKNOWN, rotating=UNKNOWN)
        made = fall(found, self.ONE)
        assert made.terms["data_loading"].value == pytest.approx(0.05)
        assert made.sources["data_loading"].startswith("phase data_wait")

    def test_a_gpu_works_behind_its_host_whose_phases_tell_nothing(self) -> None:
        ranks = tuple(replace(rank, device_type="cuda") for rank in MEASURED.ranks)
        found = planted(self.ONE, NOTHING)
        ablations = {name: kept for name, kept in found.mode.ablations.items() if name != "cached_batches"}
        made = fall(replace(found, mode=replace(found.mode, ablations=ablations, ranks=ranks)), self.ONE)
        assert made.terms["data_loading"].reason == "ablation cached_batches was not run"

    def test_fsdp_alone_cannot_tell_overhead_from_contention(self) -> None:
        found = planted(self.ONE, {**NOTHING, "slower_compute": 0.02, "overhead": 0.01})
        made = fall(found, self.ONE)
        assert made.terms["overhead"].value is None
        assert made.terms["slower_compute"].value == pytest.approx(0.03)
        assert "overhead is in it" in made.sources["slower_compute"]

    def test_nor_beside_a_ddp_of_another_size(self) -> None:
        found = planted(self.ONE, {**NOTHING, "slower_compute": 0.02, "overhead": 0.01})
        made = fall(found, self.ONE, planted(self.ONE, {**NOTHING, "slower_compute": 0.02}, num=4))
        assert made.terms["overhead"].value is None

    def test_nor_beside_a_ddp_whose_steady_steps_alone_hold_edges(self) -> None:
        found = planted(self.ONE, {**NOTHING, "slower_compute": 0.02, "overhead": 0.01})
        copies = planted(self.ONE, {**NOTHING, "slower_compute": 0.02})
        assert fall(found, self.ONE, copies).terms["overhead"].value == pytest.approx(0.01)
        edges = replace(copies, mode=replace(copies.mode, edges_are_steady=True))
        assert fall(found, self.ONE, edges).terms["overhead"].value is None

    def test_data_parallel_is_one_process(self) -> None:
        ablations = {"cached_batches": ablation(0.020, 0.080)}
        dp = mode(0.100, world_size=1, rule="global", ablations=ablations)
        made = fall(Side(mode=dp, imbalance=UNKNOWN, rotating=UNKNOWN), self.ONE)
        # Half of one device's 40 ms of waiting and 60 ms of computing are the ideal.
        expected = {"data_loading": 0.0, "overhead": 0.050, "other": 0.0}
        assert {name: values(made)[name] for name in expected} == pytest.approx(expected, abs=1e-12)
        assert made.terms["transfer"].reason == ONE_PROCESS


class TestNone:
    FOUND = planted(single(0.100, 0.0), NOTHING)

    def test_the_baseline_has_none_and_needs_no_reason(self) -> None:
        one = single(0.100, 0.0)
        made = with_waterfall(Side(mode=one, imbalance=UNKNOWN, rotating=UNKNOWN), one, None)
        assert (made.waterfall, made.waterfall_reason) == (None, "")

    @pytest.mark.parametrize("reason", ["the baseline failed", "the mode changed nothing that could be compared"])
    def test_a_mode_that_is_compared_with_nothing(self, reason: str) -> None:
        alone = replace(self.FOUND.mode, scaling_efficiency=Figure(value=None, unit="ratio", reason=reason))
        made = with_waterfall(replace(self.FOUND, mode=alone), single(0.1, 0.0), None)
        assert (made.waterfall, made.waterfall_reason) == (None, reason)

    def test_a_mode_without_ablations_on_a_gpu(self) -> None:
        ranks = tuple(replace(rank, device_type="cuda") for rank in MEASURED.ranks)
        bare = Side(mode=mode(0.15, ranks=ranks), imbalance=UNKNOWN, rotating=UNKNOWN)
        assert with_waterfall(bare, single(0.1, 0.0), None).waterfall_reason == NO_ABLATIONS


def test_intervals_are_those_of_the_parts() -> None:
    one = single(0.100, 0.0)
    found = planted(one, {**NOTHING, "transfer": 0.010})
    noisy = replace(found.mode.ablations["no_comm"], gain=seconds(0.010, 0.003))
    changed = replace(found.mode, ablations={**found.mode.ablations, "no_comm": noisy})
    transfer = fall(replace(found, mode=changed, rotating=seconds(0.0, 0.004)), one).terms["transfer"]
    assert (transfer.low, transfer.high) == pytest.approx((0.005, 0.015))


NUM_STEPS = 21
TRANSFER_MS = 10


def share_of(segments_ms: np.ndarray, *, exposed: int = 100) -> float | None:
    """Return the wait by turns of ranks that work so long before the only call of each step."""
    made = digests(lockstep(segments_ms.astype(np.int64) * MS, [TRANSFER_MS * MS] * len(segments_ms)))
    device = traced_runs.device(of=traced_runs.breakdown(100 - exposed, exposed))
    made = [replace(digest, devices=(device,)) for digest in made]
    return rotating_wait(compare_ranks(made), Traces(made)).value


def test_a_rank_that_is_always_last_is_waited_for_but_not_by_itself() -> None:
    segments = np.full((NUM_STEPS, 3), 60)
    segments[:, 1] += 30
    assert share_of(segments) == 0


def test_ranks_that_are_late_by_turns_all_wait() -> None:
    # Each of two ranks needs 30 ms more in every second step, so each waits 30 ms in every second step of 100 ms.
    segments = np.full((NUM_STEPS, 2), 60)
    segments[::2, 0] += 30
    segments[1::2, 1] += 30
    assert share_of(segments) == pytest.approx(0.15, abs=0.01)


def test_what_is_waited_beside_compute_costs_nothing() -> None:
    segments = np.full((NUM_STEPS, 2), 60)
    segments[::2, 0] += 30
    segments[1::2, 1] += 30
    assert share_of(segments, exposed=4) == pytest.approx(0.04)


def test_one_rank_has_nobody_to_wait_for() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    for found in (rotating_wait(compare_ranks([digest]), Traces([digest])), rotating_wait(None, Traces([]))):
        assert found.value is None
        assert "no two ranks" in str(found.reason)


def test_traces_without_common_steps_tell_nothing() -> None:
    late = traced_runs.late_rank(2, 1)
    outside = [replace(one.calls, step=(-1,) * len(one.calls.step)) for one in late]
    alone = [replace(one, calls=calls) for one, calls in zip(late, outside, strict=True)]
    found = rotating_wait(compare_ranks(alone), Traces(alone))
    assert found.value is None
    assert "common calls" in str(found.reason)
