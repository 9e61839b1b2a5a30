from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import NOTHING, AblationSummary, Figure, ModeSummary
from dpdoctor.analysis.base import stats
from dpdoctor.report.words.step_parts import COMMUNICATION, COMPUTE, DATA, OTHER, phase_ratios, step_parts, step_time
from tests.builders import cases, runs, traced_cases


def shown(**fields: Any) -> dict[str, str]:
    """Return the parts of the step of two ranks that wait for data in a tenth of it, as they are shown."""
    case = cases.case("ddp", world_size=2, phases_s={"data_wait": cases.STEP_S / 10}, **fields)
    return {part.key: part.shown for part in step_parts(case.mode) if part.share}


def test_communication_that_nobody_measured_may_be_in_what_computes() -> None:
    assert shown() == {DATA: "10%", COMPUTE: "\N{LESS-THAN OR EQUAL TO}90%"}


def test_what_a_step_gains_without_communication_is_taken_out_of_what_computes() -> None:
    assert shown(ablations={"no_comm": cases.ablation(0.25)}) == {DATA: "10%", COMPUTE: "65%", COMMUNICATION: "25%"}


def test_communication_that_forward_and_backward_have_no_room_for_is_in_the_update_as_well() -> None:
    phases_s = {"data_wait": cases.STEP_S / 10, "optimizer": cases.STEP_S / 2}
    case = cases.case("ddp", world_size=2, phases_s=phases_s, ablations={"no_comm": cases.ablation(0.6)})
    parts = {part.key: part for part in step_parts(case.mode)}
    found = {key: round(100 * part.share) for key, part in parts.items()}
    assert found == {DATA: 10, COMPUTE: 4, COMMUNICATION: 60, OTHER: 26}
    assert parts[COMPUTE].text.endswith("how much in the rest is not measured")


def test_a_little_more_communication_moves_no_part_by_more_than_that() -> None:
    phases_s = {"data_wait": cases.STEP_S / 10, "optimizer": 0.6 * cases.STEP_S}

    def parts(gain: float) -> list[float]:
        case = cases.case("ddp", world_size=2, phases_s=phases_s, ablations={"no_comm": cases.ablation(gain)})
        return [part.share for part in step_parts(case.mode)]

    shares = [parts(percent / 100) for percent in range(10, 91)]
    moved = [abs(now - then) for one, other in pairwise(shares) for now, then in zip(one, other, strict=True)]
    assert max(moved) == pytest.approx(0.01)


def test_an_experiment_that_shows_no_gain_measured_it_too() -> None:
    assert shown(ablations={"no_comm": cases.ablation(0.0)}) == {DATA: "10%", COMPUTE: "90%"}


def of_one_round(share: float) -> AblationSummary:
    found = cases.ablation(share)
    return replace(found, share=replace(found.share, low=None, high=None, n=1))


@pytest.mark.parametrize("no_comm", [cases.ablation(0.2, 0.25), cases.ablation(-0.2), of_one_round(0.2)])
def test_an_experiment_that_cannot_tell_leaves_communication_unknown(no_comm: AblationSummary) -> None:
    assert shown(ablations={"no_comm": no_comm}) == shown()


@pytest.mark.parametrize(("step_s", "expected"), [(None, (30, 40, 30)), (0.07, (21, 57, 21)), (0.03, (0, 100, 0))])
def test_on_a_gpu_they_are_scaled_to_the_step_without_a_profiler(
    step_s: float | None, expected: tuple[int, int, int]
) -> None:
    """In the trace 40 ms are computed and 60 idle, half of it for data: the profiler made only the idle time longer."""
    traced = traced_cases.digest(world_size=1, compute=40, idle_by={"data": 30, "python": 30})
    mode = traced_cases.case("single", traced).mode
    step = Figure(value=step_s, unit="s") if step_s else stats.unknown("s", "no window was measured")
    parts = step_parts(replace(mode, step=step))
    assert tuple(round(100 * part.share) for part in parts if part.key != COMMUNICATION) == expected


@pytest.mark.parametrize(("step_s", "expected"), [(0.2, (25, 60, 15)), (0.1, (50, 50, 0)), (0.04, (100, 0, 0))])
def test_on_a_gpu_waiting_in_a_collective_is_no_work_that_a_step_keeps(
    step_s: float, expected: tuple[int, int, int]
) -> None:
    """In the trace 50 ms are computed, 120 communicate with nothing beside, and 30 idle."""
    traced = [traced_cases.digest(rank, compute=50, exposed=120, idle_by={"python": 30}) for rank in range(2)]
    mode = traced_cases.case("ddp", *traced).mode
    parts = step_parts(replace(mode, step=Figure(value=step_s, unit="s")))
    assert tuple(round(100 * part.share) for part in parts if part.key != DATA) == expected


def test_ranks_that_exchange_nothing_communicate_for_no_time() -> None:
    assert shown(conversion=cases.in_way(NOTHING)) == {DATA: "10%", COMPUTE: "90%"}


def test_one_device_communicates_with_nobody() -> None:
    parts = step_parts(cases.case(phases_s={"data_wait": cases.STEP_S / 10}).mode)
    assert [part.shown for part in parts if part.key == COMPUTE] == ["90%"]


@pytest.mark.parametrize(("is_clocked", "communication"), [(True, "5.0%"), (False, "20%")])
def test_where_the_hosts_clock_shows_all_calls_traced_steps_do_not_tell_what_they_take(
    is_clocked: bool, communication: str
) -> None:
    case = traced_cases.case(
        "native",
        *(traced_cases.digest(rank, exposed=20, gpu=False) for rank in range(2)),
        native=replace(cases.OWN, is_clocked=is_clocked),
        phases_s={"communication": cases.STEP_S / 20},
    )
    parts = step_parts(case.mode)
    (part,) = (part for part in parts if part.key == COMMUNICATION)
    assert part.shown == communication
    # With fully_shard, torch's hooks make all calls.
    assert is_clocked is (part.text == "calls of collectives, on the host's clock")


@pytest.mark.parametrize("fields", [{}, {"ablations": {"no_comm": cases.ablation(0.25)}}])
def test_they_add_up_to_the_step(fields: dict[str, Any]) -> None:
    parts = step_parts(cases.case("ddp", world_size=2, phases_s={"data_wait": cases.STEP_S / 10}, **fields).mode)
    assert sum(part.share for part in parts) == pytest.approx(1)


def with_phases(**phases_ms: float | None) -> ModeSummary:
    phases = {
        name: Figure(value=None, unit="s", reason="?") if ms is None else Figure(value=ms / 1000, unit="s")
        for name, ms in phases_ms.items()
    }
    return replace(runs.gpu_run().summary.modes["ddp"], phases=phases)


class TestPhaseRatios:
    def test_shares_of_the_step(self) -> None:
        assert phase_ratios(with_phases(forward=30, backward=10)) == pytest.approx({"forward": 0.75, "backward": 0.25})

    def test_a_script_without_an_optimizer_still_has_shares(self) -> None:
        found = phase_ratios(with_phases(forward=30, optimizer=None, other=10))
        assert found == pytest.approx({"forward": 0.75, "other": 0.25})

    @pytest.mark.parametrize("found", [with_phases(forward=30, backward=None), with_phases(forward=0), with_phases()])
    def test_there_are_none_when_a_phase_is_missing_or_none_took_time(self, found: ModeSummary) -> None:
        assert phase_ratios(found) is None


class TestStepTime:
    def test_waiting_comes_first_where_all_wait(self) -> None:
        modes = [with_phases(data_wait=40, forward=60), with_phases(data_wait=20, forward=80)]
        assert list(step_time(modes)) == ["40% and 20% of each step wait for data"]

    def test_else_the_longest_phase_where_it_is_the_same(self) -> None:
        modes = [with_phases(data_wait=40, forward=60), with_phases(data_wait=5, forward=95)]
        said = ["on the host the forward pass is the longest part of a step (60% and 95%)"]
        assert list(step_time(modes)) == said

    def test_nothing_where_modes_differ_or_a_phase_is_unknown(self) -> None:
        assert list(step_time([with_phases(forward=60, backward=40), with_phases(forward=40, backward=60)])) == []
        assert list(step_time([with_phases(forward=60), with_phases(forward=None)])) == []
