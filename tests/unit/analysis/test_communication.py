from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import analyse
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.traces import NO_STEPS, NO_TRACE, Traces
from dpdoctor.analysis.communication import NO_PHASES, Exposure, exposed_share, on_shared_cores, removable
from dpdoctor.digest import Breakdown, Digest
from dpdoctor.records import NOW_AND_THEN, PHASES, Conversion, Launch, Rank, Strategy
from tests.builders import records, specs, traced_runs
from tests.builders.cases import by_hand, in_way, waiting
from tests.builders.feeding import even_batches, launch, rank
from tests.builders.specs import MS


def ranks(*budgets: Breakdown) -> list[Digest]:
    """Return the traces of ranks whose steps are all like this."""
    made = traced_runs.late_rank(len(budgets), 0)
    return [replace(digest, devices=(traced_runs.device(of=of),)) for digest, of in zip(made, budgets, strict=True)]


# Rank 1 comes last: what it communicates is transfer; rank 0 waits for it as well.
WAITS, LAST = traced_runs.breakdown(40, 60, comm=90), traced_runs.breakdown(90, 10, comm=25)


class TestExposedShare:
    def test_it_is_that_of_the_rank_which_waits_least(self) -> None:
        assert exposed_share(Traces(ranks(WAITS, LAST))).value == pytest.approx(0.1)

    def test_shares_are_of_total_time(self) -> None:
        steps = traced_runs.device().steps
        longer = replace(steps[0], step=steps[0].step + 1, breakdown=traced_runs.breakdown(300))
        device = replace(traced_runs.device(), steps=(steps[0], longer))
        digest = replace(traced_runs.late_rank(1, 0)[0], devices=(device,))
        found = exposed_share(Traces([digest]))
        assert (found.value, found.n) == (pytest.approx(31 * MS / (400 * MS)), 2)

    def test_without_steps_it_is_unknown(self) -> None:
        digest = replace(traced_runs.late_rank(1, 0)[0], devices=(traced_runs.device(steps=0),))
        assert exposed_share(Traces([digest])).reason == NO_STEPS
        assert exposed_share(Traces([])).reason == NO_TRACE


# Of the steps of a rank below, in ms. The profiler slows backward more than forward.
UNTRACED_PHASES = {"forward": 40, "backward": 60}
TRACED_PHASES = {"forward": 45, "backward": 80}


def traced(
    budget: Breakdown,
    *,
    queued_ms: float = 0.0,
    handling_ms: Mapping[str, int] | None = None,
    phases_ms: Mapping[str, int] = TRACED_PHASES,
    num_threads: int = 1,
    index: int = 0,
) -> Rank:
    """Return one of two ranks whose traced steps are like this; untraced ones take 100 ms, and wait for a core."""
    made = rank([replace(b, gap_queued_ns=round(queued_ms * MS)) for b in even_batches(8)], index=index, world_size=2)
    (digest,) = ranks(budget)
    (device,) = digest.devices
    steps = tuple(
        replace(
            step,
            host_phases_ns={phase: ms * MS for phase, ms in phases_ms.items()},
            comm_host_ns={phase: ms * MS for phase, ms in (handling_ms or {}).items()},
        )
        for step in device.steps
    )
    phases_ns = tuple(UNTRACED_PHASES.get(phase, 0) * MS for phase in PHASES)
    made = with_conversion(made, replace(made.record.conversion, num_threads=num_threads))
    return replace(
        made,
        steps=tuple(replace(step, phases_ns=phases_ns) for step in made.steps),
        digest=replace(digest, devices=(replace(device, steps=steps),)),
    )


def with_conversion(of: Rank, conversion: Conversion) -> Rank:
    """Return the rank with another conversion."""
    assert of.record is not None
    return replace(of, record=replace(of.record, conversion=conversion))


# The profiler makes a step of 100 ms one of 125. Of them 25 only communicate; 20 communicate beside computing.
TRACED = traced_runs.breakdown(100, 25, comm=45)
# Rank 0 waits for rank 1.
WAITING = traced_runs.breakdown(60, 65, comm=70)


def share(cores: int = 2, budget: Breakdown = TRACED, **fields: Any) -> Figure:
    """Return the share of two ranks, of which the second comes last."""
    return removable(launch(traced(WAITING), traced(budget, index=1, **fields)), cores).total


def timed(ways: Conversion, counts: Mapping[str, int | None] | None = None, **fields: Any) -> Figure:
    """Return the share of two ranks that distribute themselves, of whose steps collectives take 10 ms on the clock.

    `counts`: of the collectives of each step, where Python does not call all.
    """
    both = (traced(traced_runs.breakdown(100, 25, comm=25), index=index, **fields) for index in (0, 1))
    clocked = [waiting(with_conversion(of, ways), 0.10) for of in both]
    clocked = [replace(of, steps=tuple(replace(step, **counts or {}) for step in of.steps)) for of in clocked]
    return removable(launch(*clocked, mode="native"), 2).total


class TestRemovableShare:
    def test_with_cores_of_its_own_what_is_hidden_costs_nothing(self) -> None:
        assert share(8, queued_ms=8, handling_ms={"forward": 10}).value == pytest.approx(0.2)

    def test_on_shared_cores_what_waits_is_of_the_untraced_step(self) -> None:
        assert share(queued_ms=1e-6).value == pytest.approx(0.25)

    def test_beside_computing_it_costs_what_training_waits_for_a_core(self) -> None:
        assert share(queued_ms=8).value == pytest.approx(0.25 + 0.08)

    def test_that_is_no_more_than_communication_lasts(self) -> None:
        assert share(queued_ms=30).value == pytest.approx(0.25 + 0.20)

    @pytest.mark.parametrize(
        ("handling_ms", "untraced_ms"),
        [({"forward": 9}, 8), ({"backward": 8}, 6), ({"forward": 9, "backward": 8}, 14)],
    )
    def test_copying_for_it_is_slowed_by_the_profiler_like_its_phase(
        self, handling_ms: dict[str, int], untraced_ms: int
    ) -> None:
        assert share(queued_ms=8, handling_ms=handling_ms).value == pytest.approx(0.25 + 0.08 + untraced_ms / 100)

    def test_of_a_trace_without_phases_it_is_unknown(self) -> None:
        assert share(queued_ms=8, phases_ms={}).reason == NO_PHASES

    def test_where_nobody_counted_all_that_runs_beside_computing_counts(self) -> None:
        assert share(queued_ms=0).value == pytest.approx(0.25 + 0.20)

    def test_of_several_threads_another_one_may_wait(self) -> None:
        both = (traced(budget, queued_ms=8, num_threads=2, index=n) for n, budget in enumerate((WAITING, TRACED)))
        assert removable(launch(*both), 4).total.value == pytest.approx(0.25 + 0.20)

    def test_a_trace_that_communicates_for_longer_than_an_untraced_step_tells_of_its_own_steps_only(self) -> None:
        disturbed = traced_runs.breakdown(60, 120, comm=140)
        both = [traced(disturbed, queued_ms=8, index=place) for place in (0, 1)]
        assert removable(launch(*both), 2).total.value == pytest.approx(120 / 180)

    @pytest.mark.parametrize(
        ("ways", "expected"),
        [
            (by_hand(), 0.10),
            (in_way("fsdp2"), 0.10),
            (replace(by_hand(), strategies=(*by_hand().strategies, Strategy(name=NOW_AND_THEN))), 0.10),
            (in_way(NOW_AND_THEN), 0.25),
            (by_hand(in_backward=True), 0.25),
            (in_way("ddp"), 0.25),
            (Conversion(num_threads=1), 0.25),
        ],
    )
    def test_where_the_hosts_clock_shows_it_steps_tell_it_that_are_not_traced(
        self, ways: Conversion, expected: float
    ) -> None:
        """The trace has 25 ms of it in a step, and none beside computing; the clock has 10."""
        assert timed(ways).value == pytest.approx(expected)

    @pytest.mark.parametrize(("ways", "is_clocked"), [(by_hand(), True), (in_way("ddp"), False)])
    def test_that_is_told_of_the_mode(self, ways: Conversion, is_clocked: bool) -> None:
        both = [waiting(with_conversion(traced(TRACED, index=index), ways), 0.10) for index in (0, 1)]
        mode = replace(specs.mode_spec("native", 2), launcher=("torchrun",))
        found = analyse(specs.run({mode: [launch(*both, mode="native")]})).summary.modes["native"].native
        assert found is not None
        assert found.is_clocked is is_clocked

    @pytest.mark.parametrize(
        "counts", [{"called": 7}, {"called": None}, {"collectives": None}, {"called": None, "collectives": None}]
    )
    def test_the_clock_does_not_show_what_python_does_not_call(self, counts: dict[str, int | None]) -> None:
        assert timed(in_way("fsdp2"), counts).value == pytest.approx(0.25)

    @pytest.mark.parametrize(("ways", "handling"), [(in_way("fsdp2"), 0.0), (by_hand(), 0.18)])
    def test_what_hooks_wait_for_is_on_the_clock(self, ways: Conversion, handling: float) -> None:
        """Those of fully_shard call and wait; what a script does beside its own calls, such as copying, is not."""
        assert timed(ways, handling_ms={"forward": 9}).value == pytest.approx(0.10 + handling)

    @pytest.mark.parametrize("ways", [in_way("fsdp2"), by_hand()])
    def test_what_the_clock_shows_is_known_without_phases_in_the_trace(self, ways: Conversion) -> None:
        assert timed(ways, phases_ms={}).value == pytest.approx(0.10)

    def test_without_a_trace_it_is_unknown(self) -> None:
        bare = [replace(one, digest=None) for one in (traced(WAITING), traced(TRACED, index=1))]
        assert [removable(launch(*bare), cores).total.reason for cores in (2, 8)] == [NO_TRACE, NO_TRACE]


class TestOnSharedCores:
    @staticmethod
    def threads(*numbers: int, hosts: str = "aa", device: str = "cpu") -> Launch:
        """Return two ranks with so many threads each, on these hosts."""
        return launch(
            *(
                records.rank([], [], index=index, host=host, device=device, conversion=Conversion(num_threads=number))
                for index, (number, host) in enumerate(zip(numbers, hosts, strict=True))
            )
        )

    def test_as_many_threads_as_cores_leave_none(self) -> None:
        assert on_shared_cores(self.threads(2, 2), 4)
        assert not on_shared_cores(self.threads(2, 1), 4)

    def test_more_threads_than_cores_make_calls_wait(self) -> None:
        assert not on_shared_cores(self.threads(3, 2), 4)

    def test_each_machine_has_its_own(self) -> None:
        assert not on_shared_cores(self.threads(2, 2, hosts="ab"), 4)

    def test_beside_a_gpu_cores_do_not_compute(self) -> None:
        assert not on_shared_cores(self.threads(2, 2, device="cuda:0"), 4)


@pytest.mark.parametrize(
    ("bound", "removable"),
    [((0.2, 0.1, 0.29), (0.2, 0.1, 0.29)), ((0.1, -0.04, 0.24), (0.1, 0, 0.24)), ((-0.1, -0.2, -0.01), (0, 0, 0))],
)
def test_what_is_bounded_is_never_below_zero(bound: tuple[float, ...], removable: tuple[float, ...]) -> None:
    def share(value: float, low: float, high: float) -> Figure:
        return Figure(value=value, low=low, high=high, n=4, unit="ratio")

    seen = share(0.3, 0.28, 0.32)
    found = Exposure(total=seen, exposed=seen, on_cores=None, removable=seen, all_ranks=True).at_most(share(*bound))
    assert (found.removable.value, found.removable.low, found.removable.high) == removable
    assert found.bound == removable[0]
