from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.analysis import analyse
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.comparison import compare
from dpdoctor.analysis.machine import taken_by_others
from dpdoctor.gate.recorded import (
    Conditions,
    Recorded,
    compiles,
    conditions,
    disturbance,
    num_steps,
    recompilations,
    recorded,
    script_of,
    seconds_per_step,
    shown_seconds_per_step,
    training_data,
    typical_batch,
    workload,
)
from dpdoctor.records import Conversion, Device, EventRecord, Launch, Rank, Sample, Written
from dpdoctor.spec import Recording, RunSpec
from tests.builders import launched_runs, records
from tests.builders.launched_runs import COUNTERS, LOADER, SECOND, host, mode, of
from tests.builders.specs import mode_spec

SPEC = RunSpec(
    target="/home/me/base/scripts/train.py",
    args=("--epochs", "2", "--note", "two words"),
    cwd="/home/me/base",
    modes=(mode_spec("ddp", 2),),
    requested_modes=("ddp",),
    threads_per_device=1,
)


def changed(**fields: Any) -> RunSpec:
    return replace(SPEC, **fields)


def test_two_checkouts_have_the_same_workload() -> None:
    head = changed(target="/tmp/head/scripts/train.py", cwd="/tmp/head", seed=7)
    assert workload(head) == workload(SPEC)
    assert script_of(head) == "scripts/train.py"


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "/home/me/base/scripts/other.py"},
        {"args": ("--epochs", "3")},
        {"modes": (mode_spec("ddp", 4),)},
        {"devices": ("0", "1")},
        {"threads_per_device": 2},
        {"samples_per_step": 5},
        {"fsdp_wrap": ("Block",)},
        {"recording": Recording(warmup=3)},
        {"recording": Recording(steps=4)},
        {"recording": Recording(rounds=3)},
        {"recording": Recording(time_budget_s=3.0)},
    ],
)
def test_what_makes_another_workload_is_in_its_name(fields: dict[str, Any]) -> None:
    assert workload(changed(**fields)) != workload(SPEC)
    assert str(workload(changed(**fields))) != str(workload(SPEC))


@pytest.mark.parametrize(
    "fields", [{"seed": 3}, {"repeat": 5}, {"recording": Recording(trace_steps=0, ablations=("no_comm",))}]
)
def test_what_makes_no_other_workload(fields: dict[str, Any]) -> None:
    assert str(workload(changed(**fields))) == str(workload(SPEC))


def test_in_words() -> None:
    told = str(workload(changed(recording=Recording(steps=4, warmup=3))))
    assert told == (
        "scripts/train.py --epochs 2 --note 'two words' on 2 CPUs with 1 thread each, 10 windows, "
        "warm-up steps: 3, steps per window: 4"
    )


def test_secrets_are_not_in_it_and_redacting_twice_changes_nothing() -> None:
    spec = changed(args=("--token", "abc123secret"))
    once = workload(spec)
    assert "abc123secret" not in str(once)
    again = workload(changed(args=("--token", "<redacted>")))
    assert again == once


def test_of_a_module() -> None:
    assert script_of(changed(target="package.train", is_module=True)) == "package.train"


def test_the_medians_of_all_launches_in_their_order() -> None:
    found = mode(of(12, 10, 11))
    assert found.seconds == pytest.approx((0.012, 0.010, 0.011))
    assert found.steps == launched_runs.WINDOWS * launched_runs.STEPS
    assert found.batch == 64
    assert found.summary.launches == 3
    assert found.summary.step.value == pytest.approx(0.011)
    assert found.disturbed == ()


def test_a_launch_with_edges_among_its_steady_steps_is_left_out_where_others_have_none() -> None:
    launches = [
        records.launch(records.ahead((200, None), (300, edge_ms)), mode="ddp", number=number)
        for number, edge_ms in enumerate((102, None), 1)
    ]
    edges = records.launch(records.ahead((300, 102), (300, 102)), mode="ddp", number=3)
    assert mode(recorded(launched_runs.run(*launches, edges))).seconds == pytest.approx((0.02, 0.02))
    assert mode(recorded(launched_runs.run(edges))).seconds == pytest.approx((0.03,))


def test_what_reports_show_of_each_launch_is_kept() -> None:
    run = launched_runs.run(launched_runs.launch(12, last_window=3.0), launched_runs.launch(10, 2))
    found = mode(recorded(run))
    assert found.seconds == pytest.approx((0.012, 0.010))
    assert found.shown == pytest.approx((0.018, 0.010))


def test_the_second_launch_shows_what_varies_by_nature() -> None:
    again = mode(of(12, 10)).again
    assert again is not None
    assert again.step.value == pytest.approx(0.010)
    assert again.counters == COUNTERS
    assert mode(of(12)).again is None


def test_a_launch_that_was_disturbed_is_named() -> None:
    quota = [host(1, num_throttled=0, num_quota_periods=0), host(3, num_throttled=10, num_quota_periods=20)]
    run = launched_runs.run(launched_runs.launch(10), launched_runs.launch(10, 2, samples=quota))
    (reason,) = mode(recorded(run)).disturbed
    which, _, why = reason.partition(": ")
    assert which == "launch 2"
    assert "quota" in why
    assert "50%" in why


def test_paths_of_one_machine_are_left_out() -> None:
    found = of(10)
    assert (found.header.spec.target, found.header.spec.cwd) == ("train.py", ".")
    assert "/home/me/train.py" not in msgspec.json.encode((found.header.spec, found.modes)).decode()


def test_what_the_script_would_have_written_is_left_out() -> None:
    conversion = Conversion(loaders=(LOADER,), written=(Written(path="/home/me/model.pt", change="new"),))
    found = mode(recorded(launched_runs.run(launched_runs.launch(10, conversion=conversion))))
    assert found.summary.conversion is not None
    assert replace(found.summary.conversion, proof=()) == Conversion(loaders=(LOADER,))


def test_it_survives_being_written_and_read() -> None:
    found = of(12, 10)
    assert msgspec.json.decode(rundir.encode(found), type=Recorded) == found


def test_it_can_be_compared_like_a_run() -> None:
    comparison = compare([of(10, 10).analysis(), of(20, 20).analysis()])
    (change,) = comparison.modes["ddp"].figures["step"].changes
    assert change.ratio.value == pytest.approx(2)
    (phase,) = comparison.modes["ddp"].phases["forward"].changes
    assert phase.verdict == "more"


def test_the_training_data() -> None:
    assert training_data(Conversion(loaders=(LOADER,))) == "Digits, 200 batches per epoch"
    assert training_data(Conversion()) is None
    assert training_data(None) is None


def test_a_mode_that_was_never_launched_has_nothing() -> None:
    found = mode(recorded(launched_runs.run()))
    assert (found.seconds, found.steps, found.batch, found.again) == ((), 0, None, None)
    assert found.summary.status == "skipped"


def test_nothing_sampled_is_unknown() -> None:
    assert conditions([launched_runs.launch(10)]) == Conditions(pressure=None, throttled=None, sm_clock_mhz=None)


def test_what_grew_while_it_was_measured() -> None:
    samples = [
        host(0.5, pressure_cpu_s=0.0, num_throttled=0.0),
        host(1, pressure_cpu_s=5.0, num_throttled=100.0),
        host(3, pressure_cpu_s=5.5, num_throttled=104.0),
        host(9, pressure_cpu_s=9.0, num_throttled=900.0),
        Sample(at_ns=2 * SECOND, source="gpu0", values={"sm_clock_mhz": 1980.0}),
        Sample(at_ns=2 * SECOND, source="gpu1", values={"sm_clock_mhz": 1000.0}),
    ]
    found = conditions([launched_runs.launch(10, samples=samples)])
    assert found.pressure == pytest.approx(0.25)
    assert found.throttled == 4
    assert found.sm_clock_mhz == 1490


def test_clocks_are_of_the_gpus_that_ranks_used() -> None:
    samples = [
        Sample(at_ns=2 * SECOND, source="gpu0", values={"sm_clock_mhz": 1980.0}, uuid="GPU-a"),
        Sample(at_ns=2 * SECOND, source="gpu1", values={"sm_clock_mhz": 345.0}, uuid="GPU-b"),
    ]
    devices = (Device(name="Example", uuid="GPU-a", peak_memory_bytes=1), Device(name="Example", uuid="GPU-b"))
    found = conditions([launched_runs.launch(10, samples=samples, device="cuda:0", devices=devices)])
    assert found.sm_clock_mhz == 1980


def test_one_reading_of_what_only_grows_says_nothing() -> None:
    assert conditions([launched_runs.launch(10, samples=[host(1, pressure_cpu_s=5.0)])]).pressure is None


def test_of_several_launches_the_median_pressure_and_all_that_was_throttled() -> None:
    def launch(waited_s: float, throttled: float) -> Launch:
        samples = [
            host(1, pressure_cpu_s=0, num_throttled=0),
            host(2, pressure_cpu_s=waited_s, num_throttled=throttled),
        ]
        return launched_runs.launch(10, samples=samples)

    found = conditions([launch(0.1, 1), launch(0.2, 0), launch(0.9, 2)])
    assert (found.pressure, found.throttled) == (pytest.approx(0.2), 3)


def test_the_seconds_per_step_are_those_of_the_slowest_rank_in_the_faster_half_of_the_windows() -> None:
    fast, slow = (
        records.rank(
            [records.step(ms, window=n) for n, ms in enumerate(times, 1)],
            [records.window(ms, window=n) for n, ms in enumerate(times, 1)],
            index=index,
            world_size=2,
        )
        for index, times in enumerate([(10, 10, 10), (12, 14, 90)])
    )
    assert seconds_per_step(records.launch(fast, slow)) == pytest.approx(0.013)
    assert shown_seconds_per_step(records.launch(fast, slow)) == pytest.approx((0.012 + 0.014 + 0.090) / 3)


def test_what_a_report_shows_of_a_launch_is_what_analysis_says() -> None:
    ranks = [
        records.rank(
            [records.step(ms, window=n) for n, ms in enumerate(times, 1) for _ in range(n)],
            [records.window(ms * n, window=n) for n, ms in enumerate(times, 1)],
            index=index,
            world_size=2,
        )
        for index, times in enumerate([(10, 11, 30), (12, 14, 13)])
    ]
    launch = records.launch(*ranks, mode="ddp")
    (mode,) = analyse(launched_runs.run(launch)).summary.modes.values()
    # Of the slowest rank in each window: 1, 2 and 3 steps.
    assert shown_seconds_per_step(launch) == mode.step.value == pytest.approx((0.012 + 2 * 0.014 + 3 * 0.030) / 6)


def test_what_holds_up_one_step_in_four_is_in_it() -> None:
    times = (10, 10, 10, 50) * 2
    steps = [records.step(ms, window=1) for ms in times]
    launch = records.launch(records.rank(steps, [records.window(sum(times))]))
    assert seconds_per_step(launch) == pytest.approx(0.020)


def test_a_launch_that_measured_nothing_has_none() -> None:
    launch = records.launch(records.rank([], []))
    assert seconds_per_step(launch) is shown_seconds_per_step(launch) is None
    assert (num_steps(launch), typical_batch(launch), recompilations(launch)) == (0, None, 0)


def test_steps_and_batch() -> None:
    launch = launched_runs.launch(10, batch=48)
    assert num_steps(launch) == launched_runs.WINDOWS * launched_runs.STEPS
    assert typical_batch(launch) == 96


def test_the_last_batch_of_an_epoch_changes_no_batch() -> None:
    steps = [records.step(10, samples_drawn=n) for n in (32, 32, 32, 7)]
    assert typical_batch(records.launch(records.rank(steps, [records.window(40)]))) == 32


@pytest.mark.parametrize("samples", [(7, 32, 7, 32), (7, 32, 7, 32, 7), (7, 32, 7), (32, 7, 32)])
def test_epochs_of_three_steps_have_one_batch_wherever_a_window_begins(samples: tuple[int, ...]) -> None:
    steps = [records.step(10, samples_drawn=n) for n in samples]
    assert typical_batch(records.launch(records.rank(steps, [records.window(10 * len(samples))]))) == 32


def test_batches_of_many_sizes_are_no_batch() -> None:
    steps = [records.step(10, samples_drawn=n) for n in (32, 40, 24, 36)]
    assert typical_batch(records.launch(records.rank(steps, [records.window(40)]))) is None


@pytest.mark.parametrize(("at_s", "times"), [(0.5, 0), (1.0, 1), (1.01, 1), (1.9, 0)])
def test_a_compilation_counts_while_something_is_measured(at_s: float, times: int) -> None:
    events = [
        EventRecord(kind="compile", at_ns=round(at_s * SECOND), step=3),
        EventRecord(kind="gc", at_ns=SECOND, step=3),
    ]
    launch = launched_runs.launch(10, events=events)
    assert recompilations(launch) == times
    assert compiles(launch)


def test_a_script_that_compiles_nothing() -> None:
    assert not compiles(launched_runs.launch(10))
    assert not compiles(replace(launched_runs.launch(10), ranks=()))


CORES = 2


def told(**fields: object) -> str | None:
    launch = launched_runs.launch(10, **fields)  # type: ignore[arg-type]
    return disturbance(launch, launched_runs.run(launch).header.fingerprint.cores)


def figures(said: str | None) -> list[str]:
    """Return who or what is named, and how much."""
    return re.findall(r"other processes|quota|compile\b|gpu\d+|[\d.]+(?:%| cores| graph)|\d+\.\d+", said or "")


def seconds(in_use: float, own: float, *, num_cpus: float = CORES, after_ns: int = 1000) -> list[Sample]:
    """Return readings of four seconds: the share of the CPUs that is in use, the cores that the ranks use.

    `after_ns`: when the ranks are read, after the host.
    """
    found: list[Sample] = []
    for second in range(1, 5):
        found.append(host(second, cpu_ratio=in_use, num_cpus=num_cpus))
        for index in range(2):
            at_ns = second * SECOND + after_ns + index
            found.append(Sample(at_ns=at_ns, source=f"rank{index}", values={"cpu_cores": own / 2}))
    return found


def test_a_quiet_launch_is_not_disturbed() -> None:
    assert told() is None
    assert told(samples=seconds(1.0, 1.9)) is None


@pytest.mark.parametrize("after_ns", [-400_000, 1000, 400_000_000])
def test_cores_that_others_took(after_ns: int) -> None:
    samples = seconds(1.0, 1.4, after_ns=after_ns)
    assert figures(told(samples=samples)) == ["other processes", "0.60", "2 cores"]


def test_a_round_in_which_a_rank_was_not_read_does_not_count() -> None:
    late = [
        replace(sample, at_ns=sample.at_ns + SECOND * 6 // 10) if sample.source == "rank1" else sample
        for sample in seconds(1.0, 1.9)
    ]
    assert taken_by_others(launched_runs.launch(10, samples=late[:3]), CORES) is None


def test_cores_that_nobody_missed_were_not_taken() -> None:
    assert told(samples=seconds(0.7, 0.8)) is None


@pytest.mark.parametrize(
    ("waiting", "taken"), [((0.0, 0.45), 0.6), ((0.4, 0.4), None), ((0.1, 0.1), None), ((None, None), None)]
)
def test_cores_that_others_took_from_a_rank_that_may_use_no_other(
    waiting: tuple[float | None, float | None], taken: float | None
) -> None:
    launch = launched_runs.launch(10, samples=seconds(0.8, 1.0))
    ranks = [_waiting(rank, share) for rank, share in zip(launch.ranks, waiting, strict=True)]
    found = taken_by_others(LaunchFacts.of(replace(launch, ranks=tuple(ranks))), CORES)
    assert found == (taken and pytest.approx(taken))


def test_a_core_that_the_ranks_own_loader_processes_may_have_taken_is_nobody_elses() -> None:
    workers = [
        Sample(at_ns=second * SECOND + 2000, source="rank1.workers", values={"cpu_cores": 0.7, "num_processes": 1})
        for second in range(1, 5)
    ]
    launch = launched_runs.launch(10, samples=[*seconds(0.8, 0.3), *workers])
    ranks = [_waiting(rank, share) for rank, share in zip(launch.ranks, (0.0, 0.45), strict=True)]
    assert taken_by_others(LaunchFacts.of(replace(launch, ranks=tuple(ranks))), CORES) is None


def _waiting(rank: Rank, share: float | None) -> Rank:
    """Return a rank that waits for a core for a share of each window; None: the kernel does not tell."""
    windows = (
        replace(window, queued_ns=None if share is None else round(share * (window.end_ns - window.begin_ns)))
        for window in rank.windows
    )
    return replace(rank, windows=tuple(windows))


def test_the_load_of_a_larger_machine_says_nothing_of_the_cores_that_may_be_used() -> None:
    assert told(samples=seconds(1.0, 0.5, num_cpus=64)) is None


@pytest.mark.parametrize("samples", [[], [host(2, cpu_ratio=1.0, num_cpus=CORES)], seconds(1.0, 0.0)])
def test_without_what_the_ranks_used_nothing_is_said(samples: Sequence[Sample]) -> None:
    assert taken_by_others(launched_runs.launch(10, samples=samples), CORES) is None


def test_what_others_did_before_and_after_does_not_count() -> None:
    before = [replace(sample, at_ns=sample.at_ns // 10_000) for sample in seconds(1.0, 0.5)]
    after = [replace(sample, at_ns=sample.at_ns + 60 * SECOND) for sample in seconds(1.0, 0.5)]
    assert told(samples=[*before, *after]) is None


def test_loader_processes_are_the_launchs_own() -> None:
    workers = [
        Sample(at_ns=second * SECOND + 2000, source="rank0.workers", values={"cpu_cores": 0.5, "num_processes": 2})
        for second in range(1, 5)
    ]
    assert told(samples=[*seconds(1.0, 1.4), *workers]) is None
    idle = [replace(sample, values={"cpu_cores": 0.0, "num_processes": 2}) for sample in workers]
    assert figures(told(samples=[*seconds(1.0, 1.4), *idle])) == ["other processes", "0.60", "2 cores"]


def test_loader_processes_that_ended_between_two_readings_are_nobody_elses() -> None:
    values = {"cpu_cores": 0.0, "num_processes": 2.0}
    workers = [Sample(at_ns=second * SECOND + 2000, source="rank0.workers", values=values) for second in (1, 2, 4)]
    assert told(samples=[*seconds(1.0, 1.4), *workers]) is None


def test_a_quota_that_holds_processes_back() -> None:
    samples = [host(1, num_throttled=0, num_quota_periods=0), host(3, num_throttled=10, num_quota_periods=20)]
    assert figures(told(samples=samples)) == ["quota", "50%"]


def test_a_compilation_while_it_was_measured() -> None:
    events = [EventRecord(kind="compile", at_ns=SECOND + 1, step=9)]
    assert figures(told(events=events)) == ["compile", "1 graph"]


def test_clocks_that_were_lowered() -> None:
    samples = [
        Sample(at_ns=second * SECOND + 5, source="gpu0", values={"throttle_reasons": 0x20, "sm_clock_mhz": 900})
        for second in range(1, 5)
    ]
    fields = {"device": "cuda:0", "devices": (Device(name="Example", uuid="GPU-0"),)}
    assert figures(told(samples=samples, **fields)) == ["gpu0", "100%"]


def test_several_reasons_are_all_told() -> None:
    quota = [host(1, num_throttled=0, num_quota_periods=0), host(3, num_throttled=10, num_quota_periods=20)]
    events = [EventRecord(kind="compile", at_ns=SECOND + 1, step=9)]
    assert (told(samples=quota, events=events) or "").count("; ") == 1


def test_a_launch_that_failed_has_a_better_reason() -> None:
    assert told(samples=seconds(1.0, 1.4), status="failed") is None


def test_a_loader_process_that_an_ablation_starts_is_known() -> None:
    worker = Sample(at_ns=2 * SECOND + 2000, source="rank0.workers", values={"cpu_cores": 0.0, "num_processes": 1.0})
    launch = launched_runs.launch(10, samples=[*seconds(1.0, 1.4), worker])
    assert taken_by_others(launch, CORES) is None
    (rank, *others) = launch.ranks
    (last,) = rank.windows[-1:]
    tried = replace(last, ablation="one_worker", begin_ns=3 * SECOND // 2, end_ns=2 * SECOND)
    before = replace(last, ablation="no_comm", begin_ns=SECOND, end_ns=SECOND + 1)
    rank = replace(rank, windows=(before, tried, *rank.windows))
    assert taken_by_others(replace(launch, ranks=(rank, *others)), CORES) == pytest.approx(0.6)
