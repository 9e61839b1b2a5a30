from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import pytest

from dpdoctor.analysis.others import taken_by_others
from dpdoctor.gate.evidence.disturbed import disturbance
from dpdoctor.records import Device, EventRecord, Sample
from tests.builders import launched_runs
from tests.builders.launched_runs import SECOND, host

CORES = 2


def told(**fields: object) -> str | None:
    launch = launched_runs.launch(10, **fields)  # type: ignore[arg-type]
    return disturbance(launch, launched_runs.run(launch).header.fingerprint.cores)


def figures(said: str | None) -> list[str]:
    """Return who or what is named, and how much."""
    return re.findall(r"other processes|quota|compile\b|gpu\d+|[\d.]+ (?:cores|%|graph)|\d+\.\d+", said or "")


def seconds(in_use: float, own: float, *, num_cpus: float = CORES) -> list[Sample]:
    """Return readings of four seconds: the share of the CPUs that is in use, the cores that the ranks use."""
    found: list[Sample] = []
    for second in range(1, 5):
        found.append(host(second, cpu_ratio=in_use, num_cpus=num_cpus))
        for index in range(2):
            at_ns = second * SECOND + 1000 + index
            found.append(Sample(at_ns=at_ns, source=f"rank{index}", values={"cpu_cores": own / 2}))
    return found


def test_a_quiet_launch_is_not_disturbed() -> None:
    assert told() is None
    assert told(samples=seconds(1.0, 1.9)) is None


def test_cores_that_others_took() -> None:
    assert figures(told(samples=seconds(1.0, 1.4))) == ["other processes", "0.60", "2 cores"]


def test_cores_that_nobody_missed_were_not_taken() -> None:
    assert told(samples=seconds(0.7, 0.8)) is None


def test_the_load_of_a_larger_machine_says_nothing_of_the_cores_that_may_be_used() -> None:
    assert told(samples=seconds(1.0, 0.5, num_cpus=64)) is None


@pytest.mark.parametrize("samples", [[], [host(2, cpu_ratio=1.0, num_cpus=CORES)], seconds(1.0, 0.0)])
def test_without_what_the_ranks_used_nothing_is_said(samples: Sequence[Sample]) -> None:
    assert taken_by_others(launched_runs.launch(10, samples=samples), CORES) is None


def test_what_others_did_before_and_after_does_not_count() -> None:
    before = [dataclasses.replace(sample, at_ns=sample.at_ns // 10_000) for sample in seconds(1.0, 0.5)]
    after = [dataclasses.replace(sample, at_ns=sample.at_ns + 60 * SECOND) for sample in seconds(1.0, 0.5)]
    assert told(samples=[*before, *after]) is None


def test_loader_processes_are_the_launchs_own() -> None:
    workers = [
        Sample(at_ns=second * SECOND + 2000, source="rank0.workers", values={"cpu_cores": 0.5, "num_processes": 2})
        for second in range(1, 5)
    ]
    assert told(samples=[*seconds(1.0, 1.4), *workers]) is None
    idle = [dataclasses.replace(sample, values={"cpu_cores": 0.0, "num_processes": 2}) for sample in workers]
    assert figures(told(samples=[*seconds(1.0, 1.4), *idle])) == ["other processes", "0.60", "2 cores"]


def test_loader_processes_that_ended_between_two_readings_are_nobody_elses() -> None:
    values = {"cpu_cores": 0.0, "num_processes": 2.0}
    workers = [Sample(at_ns=second * SECOND + 2000, source="rank0.workers", values=values) for second in (1, 2, 4)]
    assert told(samples=[*seconds(1.0, 1.4), *workers]) is None


def test_a_quota_that_holds_processes_back() -> None:
    samples = [host(1, num_throttled=0, num_quota_periods=0), host(3, num_throttled=10, num_quota_periods=20)]
    assert figures(told(samples=samples)) == ["quota", "50.0 %"]


def test_a_compilation_while_it_was_measured() -> None:
    events = [EventRecord(kind="compile", at_ns=SECOND + 1, step=9)]
    assert figures(told(events=events)) == ["compile", "1 graph"]


def test_clocks_that_were_lowered() -> None:
    samples = [
        Sample(at_ns=second * SECOND + 5, source="gpu0", values={"throttle_reasons": 0x20, "sm_clock_mhz": 900})
        for second in range(1, 5)
    ]
    fields = {"device": "cuda:0", "devices": (Device(name="Example", uuid="GPU-0"),)}
    assert figures(told(samples=samples, **fields)) == ["gpu0", "100 %"]


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
    tried = dataclasses.replace(last, ablation="one_worker", begin_ns=3 * SECOND // 2, end_ns=2 * SECOND)
    before = dataclasses.replace(last, ablation="no_comm", begin_ns=SECOND, end_ns=SECOND + 1)
    rank = dataclasses.replace(rank, windows=(before, tried, *rank.windows))
    assert taken_by_others(dataclasses.replace(launch, ranks=(rank, *others)), CORES) == pytest.approx(0.6)
