"""The node's samplers: host, processes and GPUs, once a second, from outside the ranks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path

import psutil
import pynvml
from msgspec.structs import replace

from dpdoctor import cgroup, rundir
from dpdoctor.errors import RunDirectoryError
from dpdoctor.launch.processes import RankProcess
from dpdoctor.records import RankRecord, Sample

PERIOD_S = 1.0
_PRESSURE = Path("/proc/pressure/cpu")

# What NVML is asked for, how its answer becomes a figure in the unit that the name carries.
_GPU_QUERIES: dict[str, Callable[[object], float]] = {
    "kernel_running_ratio": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "memory_used_bytes": lambda gpu: float(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "energy_j": lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    "sm_clock_mhz": lambda gpu: float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    "temperature_c": lambda gpu: float(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
    "throttle_reasons": lambda gpu: float(_clocks_event_reasons(gpu)),
}


def _clocks_event_reasons(gpu: object) -> int:
    """Return the bits of why clocks are lowered; drivers before 535, and their bindings, have an older name."""
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (AttributeError, pynvml.NVMLError_FunctionNotFound):
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


@contextlib.contextmanager
def sampling(path: Path, ranks: Sequence[RankProcess]) -> Iterator[None]:
    """Sample the node into `path` while the context lasts."""
    stop = threading.Event()
    thread = threading.Thread(target=_run, args=(path, ranks, stop), name="dpdoctor-sampling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _run(path: Path, ranks: Sequence[RankProcess], stop: threading.Event) -> None:
    host, processes = HostSampler(), dict[int, RankSampler]()
    failed: set[str] = set()
    with contextlib.ExitStack() as stack:
        gpus = GpuSamplers(stack)
        while not stop.wait(PERIOD_S):
            try:
                for rank in tuple(ranks):  # those that somebody else starts are found while they run
                    gpus.look_at(rank)
                    if rank.pid and rank.pid not in processes:
                        processes[rank.pid] = RankSampler(rank.rank, rank.pid)
                samples = [host.sample()]
                samples += [sample for process in processes.values() for sample in process.samples(processes)]
                samples += gpus.samples()
            except Exception as error:  # noqa: BLE001 - a round that fails, in whatever library, must not be the last one
                samples = [_failed(repr(error))] if repr(error) not in failed else []
                failed.add(repr(error))
            rundir.append_lines(path, samples)


def _failed(why: str) -> Sample:
    """Return that a round of readings gave nothing, which is said once for each reason."""
    return Sample(at_ns=time.monotonic_ns(), source="host", values={}, unknown={"all_readings": why})


class GpuSamplers:
    """The GPUs of all ranks, each sampled from the moment its rank has named it until `stack` closes."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._complete: set[int] = set()
        self._taken: set[int] = set()
        self._samplers: dict[str, GpuSampler | UnseenGpu] = {}

    def look_at(self, rank: RankProcess) -> None:
        """Begin to sample what the rank has named, in that order: several ranks may see the same GPUs.

        They may also have one number for different ones: of these, who comes later gets the next that is free.
        """
        if rank.rank in self._complete:
            return
        uuids = gpu_uuids(rank.directory)
        for index, uuid in uuids.items():
            if uuid not in self._samplers:
                free = next(number for number in count(index) if number not in self._taken)
                self._taken.add(free)
                self._samplers[uuid] = self._sampler(free, uuid)
        if uuids:
            self._complete.add(rank.rank)

    def _sampler(self, index: int, uuid: str) -> GpuSampler | UnseenGpu:
        try:
            return self._stack.enter_context(gpu_sampler(index, uuid))
        except pynvml.NVMLError as error:  # it must not end the sampling of the others
            return UnseenGpu(index, f"NVML does not give {uuid}: {error}")

    def samples(self) -> list[Sample]:
        """Return the present readings of each GPU."""
        return [replace(sampler.sample(), uuid=uuid) for uuid, sampler in self._samplers.items()]


def gpu_uuids(directory: Path) -> dict[int, str]:
    """Return the GPUs that a rank says it sees, by number: NVML's index is not CUDA's, so the rank is asked."""
    try:
        record = rundir.read_json(directory / rundir.RANK, RankRecord)
    except RunDirectoryError:
        return {}
    return {index: device.uuid for index, device in record.gpus.items()}


class HostSampler:
    """The whole machine."""

    def __init__(self) -> None:
        psutil.cpu_percent()

    def sample(self) -> Sample:
        """Return CPU, memory, shared memory, and pressure and throttling where the kernel tells them."""
        memory = psutil.virtual_memory()
        values = {
            "cpu_ratio": psutil.cpu_percent() / 100,
            "memory_used_bytes": float(memory.total - memory.available),
            "memory_total_bytes": float(memory.total),
        }
        unknown: dict[str, str] = {}
        for names, read in _KERNEL_QUERIES.items():
            try:
                values.update(zip(names, read(), strict=True))
            except (OSError, ValueError, LookupError) as error:
                unknown.update(dict.fromkeys(names, f"the kernel does not tell: {error}"))
        return Sample(at_ns=time.monotonic_ns(), source="host", values=values, unknown=unknown)


def _cpu_pressure() -> tuple[float, float]:
    """Return how much some task waited for a core (/proc/pressure/cpu): share of the last 10 s, seconds since boot."""
    first = _PRESSURE.read_text().splitlines()[0]
    fields = dict(field.split("=") for field in first.split()[1:])
    return float(fields["avg10"]) / 100, int(fields["total"]) / 1e6


def _throttling() -> tuple[float, float, float]:
    found = cgroup.throttling()
    return found.throttled_s, float(found.num_throttled), float(found.num_periods)


def _num_cpus() -> tuple[float]:
    """Return how many CPUs `cpu_ratio` is a share of; those that may be used can be fewer."""
    number = psutil.cpu_count()
    if number is None:
        raise ValueError("it does not say how many CPUs there are")
    return (float(number),)


def _shared_memory() -> tuple[float, float]:
    """Return the bytes that are used of /dev/shm, and that it has."""
    shm = os.statvfs("/dev/shm")
    return float((shm.f_blocks - shm.f_bfree) * shm.f_frsize), float(shm.f_blocks * shm.f_frsize)


# What not every kernel or container tells. Only the first of pressure's is of a moment; the others of pressure and
# throttling are cumulative.
_KERNEL_QUERIES: dict[tuple[str, ...], Callable[[], tuple[float, ...]]] = {
    ("num_cpus",): _num_cpus,
    ("shm_used_bytes", "shm_total_bytes"): _shared_memory,
    ("pressure_cpu_ratio", "pressure_cpu_s"): _cpu_pressure,
    ("throttled_s", "num_throttled", "num_quota_periods"): _throttling,
}


class RankSampler:
    """One rank and its DataLoader workers: CPU in cores since the last sample, resident memory."""

    def __init__(self, rank: int, pid: int) -> None:
        self._rank = rank
        self._pid = pid
        self._cpu_s: dict[int, float] = {}
        self._at_s: float | None = None

    def samples(self, ranks: Collection[int] = ()) -> list[Sample]:
        """Return a sample of the rank and, when it has children, one of them together; none once it is gone.

        `ranks`, by their processes, are no children of another, and nor is what they started.
        """
        try:
            process = psutil.Process(self._pid)
            children = _without(process.children(recursive=True), {*ranks} - {self._pid})
        except psutil.Error:
            return []
        now = time.monotonic()
        elapsed = None if self._at_s is None else now - self._at_s
        self._at_s = now
        both = ((f"rank{self._rank}", [process]), (f"rank{self._rank}.workers", children))
        return [s for source, group in both if (s := self._measure(source, group, elapsed)) is not None]

    def _measure(self, source: str, processes: Sequence[psutil.Process], elapsed_s: float | None) -> Sample | None:
        """Return one sample of these processes together; None when none of them lives."""
        spent, memory, alive = 0.0, 0, 0
        for process in processes:
            with contextlib.suppress(psutil.Error):
                times, resident = process.cpu_times(), process.memory_info().rss
                total = times.user + times.system
                spent += total - self._cpu_s.get(process.pid, 0.0)  # not seen before: born since the last sample
                self._cpu_s[process.pid] = total
                memory += resident
                alive += 1
        if not alive:
            return None
        values = {"memory_bytes": float(memory), "num_processes": float(alive)}
        if elapsed_s:
            values["cpu_cores"] = spent / elapsed_s
        return Sample(at_ns=time.monotonic_ns(), source=source, values=values)


def _without(processes: Sequence[psutil.Process], pids: Collection[int]) -> list[psutil.Process]:
    """Return processes, each after its parent, without those of these numbers and all that they started."""
    left_out = set(pids)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.ppid() in left_out:
                left_out.add(process.pid)
    return [process for process in processes if process.pid not in left_out]


class GpuSampler:
    """One GPU. What its driver does not tell is unknown with the driver's words, never 0."""

    def __init__(self, index: int, handle: object) -> None:
        self._source = f"gpu{index}"
        self._handle = handle

    def sample(self) -> Sample:
        """Return the GPU's present readings."""
        values: dict[str, float] = {}
        unknown: dict[str, str] = {}
        for name, query in _GPU_QUERIES.items():
            try:
                values[name] = query(self._handle)
            except (pynvml.NVMLError, AttributeError) as error:  # the latter of bindings older than the query
                unknown[name] = str(error)
        return Sample(at_ns=time.monotonic_ns(), source=self._source, values=values, unknown=unknown)


class UnseenGpu:
    """One GPU that a rank names and NVML does not know: of each reading it tells why there is none."""

    def __init__(self, index: int, reason: str) -> None:
        self._source = f"gpu{index}"
        self._unknown = dict.fromkeys(_GPU_QUERIES, reason)

    def sample(self) -> Sample:
        """Return that nothing can be read."""
        return Sample(at_ns=time.monotonic_ns(), source=self._source, values={}, unknown=self._unknown)


@contextlib.contextmanager
def gpu_sampler(index: int, uuid: str) -> Iterator[GpuSampler]:
    """Give the sampler of one GPU while NVML is open."""
    pynvml.nvmlInit()
    try:
        yield GpuSampler(index, _handle(uuid))
    finally:
        pynvml.nvmlShutdown()


def _handle(uuid: str) -> object:
    """Return NVML's handle of a GPU or, of the same number, a MIG instance: torch tells the number alone."""
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        with contextlib.suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid.removeprefix('GPU-')}")
        raise
