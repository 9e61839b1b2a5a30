"""What other processes take of the cores takes the speedup with it; how fast the cores computed, of modes and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.machine import core_pace_words, slower_cores, taken_from_a_worker
from dpdoctor.records import Launch, Sample
from tests.builders import records


def disturbed_launch(mode: str, others: float) -> Launch:
    """Return a launch on two cores that are all in use, so many of them by other processes."""
    rank = records.even_rank(100, num_windows=3)
    at_ns = rank.windows[0].begin_ns
    samples = (
        Sample(at_ns=at_ns, source="host", values={"cpu_ratio": 1.0, "num_cpus": 2.0}),
        Sample(at_ns=at_ns + 1, source="rank0", values={"cpu_cores": 2.0 - others}),
    )
    return replace(records.launch(rank, mode=mode), samples=samples)


@pytest.mark.parametrize(
    ("of_single", "of_dp", "reason"),
    [
        (0.0, 0.0, None),
        (1.2, 0.0, "other processes used 1.2 of 2 cores while single was measured"),
        (0.0, 0.9, "other processes used 0.90 of 2 cores while dp was measured"),
        (1.2, 1.2, "other processes used 1.2 of 2 cores while single was measured"),
    ],
)
def test_no_speedup_is_given_of_a_mode_that_others_disturbed_or_over_such_a_baseline(
    of_single: float, of_dp: float, reason: str | None
) -> None:
    run = records.run({"single": [disturbed_launch("single", of_single)], "dp": [disturbed_launch("dp", of_dp)]})
    run = replace(run, header=records.header({"single": 1, "dp": 1}))
    fingerprint = replace(run.header.fingerprint, cores=2)
    run = replace(run, header=replace(run.header, fingerprint=fingerprint))
    found = analyse(run).summary.modes["dp"]
    assert (found.speedup.reason, found.scaling_efficiency.reason) == (reason, reason)
    assert (found.speedup.value is None) == bool(reason)
    assert found.throughput.value is not None
    caveat = analyse(run).summary.caveat
    assert ("no speedup is given" in caveat, "no speedup of dp is given" in caveat) == (
        of_single > 0,
        not of_single and of_dp > 0,
    )


@pytest.mark.parametrize(
    ("cores", "ranks", "workers", "others", "told"),
    [
        (2, 1.0, 0.0, 0.49, "other processes used 0.49 of 2 cores"),
        (2, 1.0, 0.5, 0.3, "other processes used 0.30 of 2 cores"),
        (4, 1.0, 0.0, 0.5, None),
        (4, 1.0, 0.0, 2.4, "other processes used 2.4 of 4 cores"),
        (2, 1.0, 0.0, 0.15, None),
        (2, 1.9, 0.0, 0.3, None),
    ],
    ids=["one worker's", "beside workers", "cores are left", "hardly a core is left", "little", "the ranks had it"],
)
def test_cores_that_a_loader_process_would_have_had(
    cores: int, ranks: float, workers: float, others: float, told: str | None
) -> None:
    rank = records.even_rank(100, num_windows=3)
    at_ns = rank.windows[0].begin_ns
    in_use = (ranks + workers + others) / cores
    samples = (
        Sample(at_ns=at_ns, source="host", values={"cpu_ratio": in_use, "num_cpus": float(cores)}),
        Sample(at_ns=at_ns + 1, source="rank0", values={"cpu_cores": ranks}),
        Sample(at_ns=at_ns + 2, source="rank0.workers", values={"cpu_cores": workers, "num_processes": 1.0}),
    )
    launch = LaunchFacts.of(replace(records.launch(rank), samples=samples))
    assert taken_from_a_worker(launch, cores) == told
    assert taken_from_a_worker(LaunchFacts.of(records.launch(rank)), cores) is None


EVEN = [200, 202, 198, 201, 199, 200, 203, 197]


def launch_at_pace(*paces_us: Sequence[int | None]) -> Launch:
    """Return a launch whose ranks took so many us for the arithmetic at the end of each window."""
    ranks = []
    for index, of_rank in enumerate(paces_us):
        steps = [records.step(10, step=number, window=number) for number in range(len(of_rank))]
        windows = [
            records.window(10, window=number, round=number, core_benchmark_ns=us and us * 1000)
            for number, us in enumerate(of_rank)
        ]
        ranks.append(records.rank(steps, windows, index=index, world_size=len(paces_us)))
    return records.launch(*ranks)


def times(factor: float) -> list[int]:
    return [round(us * factor) for us in EVEN]


def test_cores_that_are_slower_beside_each_other_bound_the_speedup() -> None:
    said = core_pace_words({"single": launch_at_pace(EVEN), "ddp": launch_at_pace(times(1.5), times(1.5))})
    assert "1.50x (ddp)" in said
    assert "speedup is not to be had" in said


def test_a_machine_that_was_slower_during_the_baseline_flatters_the_others() -> None:
    said = core_pace_words({"single": launch_at_pace(times(1.5)), "ddp": launch_at_pace(EVEN, EVEN)})
    assert "1.50x (ddp)" in said
    assert "too large" in said


def test_a_pace_that_changed_half_way_is_told_of_its_mode() -> None:
    said = core_pace_words({"single": launch_at_pace([*EVEN, *times(1.4)])})
    assert "1.40x" in said
    assert "of single" in said


@pytest.mark.parametrize(
    "launches",
    [
        {"single": launch_at_pace(EVEN), "ddp": launch_at_pace(EVEN, times(1.05))},
        {"single": launch_at_pace([150, 300] * 4), "ddp": launch_at_pace([300, 150] * 4, [150, 300] * 4)},
        {"single": launch_at_pace([None] * 8), "ddp": launch_at_pace(times(2), times(2))},
        {"single": launch_at_pace(EVEN), "ddp": launch_at_pace(times(2), [None] * 8)},
        {"single": launch_at_pace([200])},
        {},
    ],
    ids=["hardly slower", "noisy", "baseline not tried", "a rank did not try", "one window", "no mode"],
)
def test_what_is_alike_or_unsure_or_unknown_is_not_told(launches: dict[str, Launch]) -> None:
    assert core_pace_words(launches) == ""


def test_a_rank_is_compared_with_the_mean_of_the_others() -> None:
    (window,) = launch_at_pace([300], [200], [100]).windows()
    assert slower_cores(window) == pytest.approx([2.0, 1.0, 0.4])


@pytest.mark.parametrize("paces", [([300],), ([300], [None])], ids=["alone", "not tried"])
def test_a_rank_without_others_is_not_compared(paces: tuple[list[int | None], ...]) -> None:
    (window,) = launch_at_pace(*paces).windows()
    assert slower_cores(window) is None
