from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import psutil
import pynvml
import pytest
from msgspec.structs import replace

from dpdoctor import cgroup, rundir
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.machine import taken_by_others
from dpdoctor.launch import sampling
from dpdoctor.launch.sampling import GpuSampler, HostSampler, RankSampler
from dpdoctor.records import Device, RankRecord, Sample
from tests.builders import launched_runs
from tests.unit.launch.conftest import Start, until

BUSY_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
child.wait()
"""
# As Lightning does; the other rank starts a process, too.
STARTS_A_RANK = """
import subprocess, sys, time
begin = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {!r}]); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", begin.format("import time; time.sleep(60)")])
time.sleep(60)
"""
KERNELS = ("pressure_cpu_ratio", "pressure_cpu_s", "throttled_s", "num_throttled", "num_quota_periods")


def finite(*samples: Sample) -> bool:
    return all(math.isfinite(value) for sample in samples for value in sample.values.values())


def test_the_host_tells_finite_figures_or_says_why_not() -> None:
    host = HostSampler()
    samples = [host.sample(), host.sample()]
    assert finite(*samples)
    for sample in samples:
        assert sample.source == "host"
        assert {"cpu_ratio", "memory_used_bytes", "memory_total_bytes"} <= set(sample.values)
        told = {*sample.values, *sample.unknown}
        assert {*KERNELS, "shm_used_bytes", "shm_total_bytes"} <= told
        assert not set(sample.values) & set(sample.unknown)
        assert 0 < sample.values["memory_used_bytes"] <= sample.values["memory_total_bytes"]
        assert 0 <= sample.values["cpu_ratio"] <= 1
    assert samples[0].at_ns <= samples[1].at_ns


def host_of(directory: Path, monkeypatch: pytest.MonkeyPatch, pressure: str, stat: str | None) -> Sample:
    """Return a sample of a host whose kernel says so; `stat` None: it has no such file."""
    (directory / "pressure").write_text(pressure)
    (directory / "membership").write_text("0::/\n")
    if stat is not None:
        (directory / "cpu.stat").write_text(stat)
    monkeypatch.setattr(sampling, "_PRESSURE", directory / "pressure")
    monkeypatch.setattr(cgroup, "_MEMBERSHIP", directory / "membership")
    monkeypatch.setattr(cgroup, "_MOUNT", directory)
    return HostSampler().sample()


def test_what_the_kernel_tells_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressure = "some avg10=12.50 avg60=1.00 avg300=0.00 total=3000000\nfull avg10=0.00"
    stat = "usage_usec 5\nnr_periods 40\nnr_throttled 10\nthrottled_usec 2500000\n"
    sample = host_of(tmp_path, monkeypatch, pressure, stat)
    told = {name: value for name, value in sample.values.items() if name in KERNELS}
    assert told == dict(zip(KERNELS, (0.125, 3.0, 2.5, 10, 40), strict=True))
    assert sample.unknown == {}


@pytest.mark.parametrize(
    "stat", ["usage_usec 5\n", "throttled_usec", "throttled_usec many", "throttled_usec 5", "", None]
)
@pytest.mark.parametrize("pressure", ["", "some", "some avg10=", "some avg10=much", "some avg10=1.00"])
def test_what_the_kernel_does_not_tell_is_unknown_and_never_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pressure: str, stat: str | None
) -> None:
    sample = host_of(tmp_path, monkeypatch, pressure, stat)
    assert set(sample.unknown) == set(KERNELS)
    assert all("kernel" in reason for reason in sample.unknown.values())
    assert not set(sample.values) & set(sample.unknown)


def test_the_first_sample_of_a_rank_has_no_cpu_share() -> None:
    sample = RankSampler(3, os.getpid()).samples()[0]  # the second is of children that other tests may have left
    assert sample.source == "rank3"
    assert set(sample.values) == {"memory_bytes", "num_processes"}
    assert sample.values["memory_bytes"] > 1_000_000


def cpu_of(sampler: RankSampler) -> dict[str, float]:
    return {sample.source: sample.values["cpu_cores"] for sample in sampler.samples() if "cpu_cores" in sample.values}


def test_the_cpu_share_is_what_the_process_spent() -> None:
    sampler = RankSampler(0, os.getpid())
    sampler.samples()
    begin = psutil.Process().cpu_times()
    while psutil.Process().cpu_times().user - begin.user < 0.05:
        sum(range(10_000))
    samples = sampler.samples()
    assert finite(*samples)
    assert samples[0].values["cpu_cores"] > 0


def test_workers_are_sampled_together_and_from_their_birth(start: Start) -> None:
    process = start(BUSY_CHILD)
    sampler = RankSampler(0, process.pid)
    assert sampler.samples()[0].source == "rank0"
    stdout = process.directory / rundir.STDOUT
    until(lambda: bool(stdout.read_text().strip()))
    child = psutil.Process(int(stdout.read_text()))
    until(lambda: child.cpu_times().user > 0.05)
    spent = cpu_of(sampler)
    assert spent["rank0.workers"] > 0, "a worker that was not there before spent all it has spent since"
    own, workers = sampler.samples()
    assert (own.source, workers.source) == ("rank0", "rank0.workers")
    assert workers.values["num_processes"] == 1
    assert finite(own, workers)


def test_another_rank_that_a_rank_started_is_no_worker_of_it_and_nor_is_what_that_started(start: Start) -> None:
    process = start(STARTS_A_RANK)
    until(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 2)
    (rank,) = psutil.Process(process.pid).children()
    ranks = {process.pid, rank.pid}
    assert [sample.source for sample in RankSampler(0, process.pid).samples(ranks)] == ["rank0"]
    own, workers = RankSampler(1, rank.pid).samples(ranks)
    assert (own.source, workers.source) == ("rank1", "rank1.workers")
    assert workers.values["num_processes"] == 1


def test_a_rank_that_is_gone_gives_no_sample(start: Start) -> None:
    process = start("")
    until(lambda: process.exit_code() is not None)
    assert RankSampler(0, process.pid).samples() == []


def test_samples_are_written_while_the_context_lasts(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PERIOD_S", 0.01)
    process, path = start(), tmp_path / rundir.NODE
    with sampling.sampling(path, [process]):
        until(lambda: len(rundir.read_lines(path, Sample)) >= 4)
    written = rundir.read_lines(path, Sample)
    assert {sample.source for sample in written} == {"host", "rank0"}
    assert finite(*written)
    size = path.stat().st_size
    assert size == sum(len(line) + 1 for line in path.read_text().splitlines())


def test_what_others_use_is_told_by_the_readings_as_they_are_written(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 100.0)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    process, path = start("while True: pass"), tmp_path / rundir.NODE
    with sampling.sampling(path, [process]):
        until(lambda: sum("cpu_cores" in sample.values for sample in rundir.read_lines(path, Sample)) >= 2)
    written = rundir.read_lines(path, Sample)
    shift_ns = launched_runs.SECOND - written[0].at_ns
    samples = [replace(sample, at_ns=sample.at_ns + shift_ns) for sample in written]
    taken = taken_by_others(LaunchFacts.of(launched_runs.launch(10, samples=samples)), cores=8)
    assert taken is not None
    assert 6.5 < taken < 8, "the rank uses one core at most, and all are in use"


def rank_on(*uuids: str, rank: int = 0) -> RankRecord:
    """Return what a rank says that sees these GPUs."""
    devices = tuple(Device(name="Example", uuid=uuid) for uuid in uuids)
    return RankRecord(
        rank=rank, world_size=1, pid=1, host="box", device="gpu", devices=devices, backend=None, status="running"
    )


def test_a_gpu_that_nvml_does_not_know_does_not_end_the_others_samples(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PERIOD_S", 0.01)
    process, path = start(), tmp_path / rundir.NODE
    assert sampling.gpu_uuids(process.directory) == {}
    uuids = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001")
    rundir.write_json(process.directory / rundir.RANK, rank_on(*uuids))
    assert sampling.gpu_uuids(process.directory) == dict(enumerate(uuids))
    with sampling.sampling(path, [process]):
        until(lambda: len(rundir.read_lines(path, Sample)) >= 4)


class Library:
    """Stands in for NVML's handles: a machine whose driver knows these GPUs; `open` counts inits less shutdowns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *known: str) -> None:
        self.known, self.open, self.asked = known, 0, []
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: self.count(1))
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: self.count(-1))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", self.handle)
        monkeypatch.setattr(sampling, "_GPU_QUERIES", {"power_w": lambda handle: float(known.index(handle))})

    def count(self, change: int) -> None:
        self.open += change

    def handle(self, uuid: str) -> str:
        self.asked.append(uuid)
        if uuid not in self.known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid


def test_every_gpu_of_a_rank_is_sampled_by_its_uuid(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PERIOD_S", 0.01)
    library = Library(monkeypatch, "GPU-b", "GPU-a")
    process, path = start(), tmp_path / rundir.NODE
    rundir.write_json(process.directory / rundir.RANK, rank_on("GPU-a", "GPU-x", "GPU-b"))
    with sampling.sampling(path, [process]):
        until(lambda: sum(s.source == "gpu2" for s in rundir.read_lines(path, Sample)) >= 2)
    of_gpus = [s for s in rundir.read_lines(path, Sample) if s.source.startswith("gpu")]
    power = {s.source: s.values.get("power_w") for s in of_gpus}
    assert power == {"gpu0": 1.0, "gpu1": None, "gpu2": 0.0}, "torch's order is not NVML's"
    reasons = {s.source: s.unknown for s in of_gpus}
    assert reasons == {"gpu0": {}, "gpu1": {"power_w": "NVML does not give GPU-x: Not Found"}, "gpu2": {}}
    assert library.asked == ["GPU-a", "GPU-x", "MIG-x", "GPU-b"], "a rank is asked until it has said what it sees"
    assert library.open == 0


def test_gpus_that_several_ranks_see_are_sampled_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    Library(monkeypatch, "GPU-a", "GPU-b")
    with contextlib.ExitStack() as stack:
        gpus = sampling.GpuSamplers(stack)
        for rank in (start(), start()):
            rundir.write_json(rank.directory / rundir.RANK, rank_on("GPU-a", "GPU-b"))
            gpus.look_at(rank)
        assert [sample.source for sample in gpus.samples()] == ["gpu0", "gpu1"]


def test_ranks_have_a_gpu_each(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    Library(monkeypatch, "GPU-a", "GPU-b")
    ranks = [start(), start()]
    with contextlib.ExitStack() as stack:
        gpus = sampling.GpuSamplers(stack)
        for rank, uuid in zip(ranks, ("GPU-a", "GPU-b"), strict=True):
            gpus.look_at(rank)
            rundir.write_json(rank.directory / rundir.RANK, rank_on(uuid, rank=rank.rank))
            gpus.look_at(rank)
        assert {sample.source: sample.values["power_w"] for sample in gpus.samples()} == {"gpu0": 0.0, "gpu1": 1.0}


@pytest.mark.parametrize(
    "seen", [(("a", "b"), ("c", "d")), (("a",), ("b", "c")), (("a", "b"), ("c",)), (("a", "b"), ("b", "c"))]
)
def test_gpus_have_a_name_each_also_where_ranks_see_different_ones(
    start: Start, monkeypatch: pytest.MonkeyPatch, seen: tuple[tuple[str, ...], ...]
) -> None:
    Library(monkeypatch, *{uuid for of_rank in seen for uuid in of_rank})
    with contextlib.ExitStack() as stack:
        gpus = sampling.GpuSamplers(stack)
        for rank, uuids in zip((start(), start()), seen, strict=True):
            rundir.write_json(rank.directory / rundir.RANK, rank_on(*uuids, rank=rank.rank))
            gpus.look_at(rank)
        samples = gpus.samples()
    assert len({sample.source for sample in samples}) == len(samples)
    assert [sample.uuid for sample in samples] == list(dict.fromkeys(uuid for of_rank in seen for uuid in of_rank))


def test_what_a_driver_does_not_tell_is_unknown_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object) -> float:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(sampling, "_GPU_QUERIES", {"power_w": refuses, "sm_clock_mhz": lambda _: 1980.0})
    sample = GpuSampler(1, object()).sample()
    assert sample.source == "gpu1"
    assert sample.values == {"sm_clock_mhz": 1980.0}
    assert sample.unknown == {"power_w": "Not Supported"}


@pytest.mark.parametrize("uuid", ["GPU-a", "MIG-a"])
def test_a_mig_instance_is_sampled_whose_number_alone_torch_tells(
    start: Start, monkeypatch: pytest.MonkeyPatch, uuid: str
) -> None:
    Library(monkeypatch, "MIG-a")
    rank = start()
    rundir.write_json(rank.directory / rundir.RANK, rank_on(uuid, rank=rank.rank))
    with contextlib.ExitStack() as stack:
        gpus = sampling.GpuSamplers(stack)
        gpus.look_at(rank)
        (sample,) = gpus.samples()
    assert (sample.source, sample.values) == ("gpu0", {"power_w": 0.0})


class OldBindings:
    """Stands in for pynvml of before 535: it has no query of that name."""

    NVMLError, NVMLError_FunctionNotFound = pynvml.NVMLError, pynvml.NVMLError_FunctionNotFound

    @staticmethod
    def nvmlDeviceGetCurrentClocksThrottleReasons(_: object) -> int:  # noqa: N802 - NVML's name
        return 0x24


def test_reasons_of_lowered_clocks_have_an_older_name_in_old_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "pynvml", OldBindings)
    sample = GpuSampler(0, object()).sample()
    assert sample.values == {"throttle_reasons": 36.0}
    assert set(sample.unknown) == set(sampling._GPU_QUERIES) - {"throttle_reasons"}
    assert "nvmlDeviceGetPowerUsage" in sample.unknown["power_w"]


def test_reasons_of_lowered_clocks_have_an_older_name_in_old_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", missing)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _: 0x24)
    query = sampling._GPU_QUERIES["throttle_reasons"]
    monkeypatch.setattr(sampling, "_GPU_QUERIES", {"throttle_reasons": query})
    assert GpuSampler(0, object()).sample().values == {"throttle_reasons": 36.0}


def test_a_round_that_fails_is_said_once_and_is_not_the_last_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PERIOD_S", 0.01)
    rounds, read = iter(range(1000)), HostSampler.sample

    def sample(host: HostSampler) -> Sample:
        if next(rounds) % 2 == 0:
            raise ZeroDivisionError("no such second")
        return read(host)

    monkeypatch.setattr(HostSampler, "sample", sample)
    process, path = start(), tmp_path / rundir.NODE
    with sampling.sampling(path, [process]):
        until(lambda: len(rundir.read_lines(path, Sample)) >= 7)
    failed = [s for s in rundir.read_lines(path, Sample) if not s.values]
    assert [s.unknown for s in failed] == [{"all_readings": "ZeroDivisionError('no such second')"}]
