"""A simulated run as a run directory: what `dpdoctor report` reads of a real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dpdoctor import __version__, rundir
from dpdoctor.records import Launch, LaunchRecord, Rank, Sample
from dpdoctor.spec import BASELINE, Fingerprint, Gpu, ModeSpec, Recording, RunHeader, RunSpec

from .ranks import GPUS_PER_NODE, rank
from .timetable import BEGIN_NS, MS, STEP_MS, timetable

PERIOD_NS = 1_000 * MS
MEMORY_BYTES = 2_000_000_000_000


def write(root: Path, *, num_ranks: int, num_steps: int, modes: Sequence[str]) -> None:
    """Write a run of one device and of `modes` on so many ranks."""
    root.mkdir(parents=True)
    sizes = {BASELINE: 1, **dict.fromkeys(modes, num_ranks)}
    rundir.write_json(root / rundir.HEADER, header(sizes))
    for mode, world_size in sizes.items():
        launch_path = rundir.launch_dir(root, mode)
        launch_path.mkdir()
        made = launch(mode, world_size, num_steps)
        rundir.write_json(launch_path / rundir.LAUNCH, made.record)
        rundir.append_lines(launch_path / rundir.NODE, made.samples)
        for one in made.ranks:
            _write_rank(rundir.rank_dir(launch_path, one.index), one)


def header(sizes: dict[str, int]) -> RunHeader:
    """Return the header of a run of these modes, with their numbers of ranks."""
    gpus = tuple(
        Gpu(name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{i:036d}", memory_bytes=85_000_000_000)
        for i in range(GPUS_PER_NODE)
    )
    spec = RunSpec(
        target="/home/me/train.py",
        cwd="/home/me",
        modes=tuple(_mode(name, size) for name, size in sizes.items()),
        requested_modes=tuple(name for name in sizes if name != BASELINE),
        devices=tuple(gpu.uuid for gpu in gpus),
        threads_per_device=8,
        recording=Recording(ablations=tuple(ablation for ablation in STEP_MS if ablation != "full")),
    )
    return RunHeader(
        dpdoctor=__version__,
        created="2026-01-02T03:04:05Z",
        command=("dpdoctor", "profile", "train.py", "--modes", ",".join(spec.requested_modes)),
        spec=spec,
        fingerprint=Fingerprint(
            host="node0",
            cpu="Example CPU @ 2.00GHz",
            cores=192,
            memory_bytes=MEMORY_BYTES,
            gpus=gpus,
            driver="580.65",
            system="Linux 6.1",
            python="3.11.7",
            packages={"torch": "2.15.0", "torchvision": "0.29.2", "numpy": "2.3.1"},
            script_sha256="ab" * 32,
        ),
    )


def launch(mode: str, world_size: int, num_steps: int) -> Launch:
    """Return one launch in memory."""
    slots = timetable(num_steps, seed=world_size)
    record = LaunchRecord(
        mode=mode,
        launch=1,
        status="ok",
        exit_codes=(0,) * world_size,
        begin_ns=BEGIN_NS,
        end_ns=slots[-1].end_ns + 1_000 * MS,
    )
    ranks = tuple(rank(index, mode, world_size, slots) for index in range(world_size))
    return Launch(record=record, ranks=ranks, samples=tuple(_samples(world_size, record.end_ns)))


def _mode(name: str, world_size: int) -> ModeSpec:
    return ModeSpec(
        name=name,
        world_size=world_size,
        num_devices=world_size,
        distributed=name != BASELINE,
        batch_rule="per-device",
    )


def _write_rank(path: Path, made: Rank) -> None:
    path.mkdir()
    rundir.write_json(path / rundir.RANK, made.record)
    rundir.append_lines(path / rundir.STEPS, made.steps)
    rundir.append_lines(path / rundir.WINDOWS, made.windows)
    rundir.append_lines(path / rundir.EVENTS, made.events)
    rundir.append_lines(path / rundir.LOADER, made.batches)
    rundir.write_json(path / rundir.DIGEST, made.digest)


def _samples(world_size: int, end_ns: int) -> Iterator[Sample]:
    """Yield the readings of the host, of every rank and its workers, and of every GPU, once a second."""
    for number, at in enumerate(range(BEGIN_NS + PERIOD_NS, end_ns, PERIOD_NS)):
        yield Sample(
            at_ns=at,
            source="host",
            values={
                "cpu_ratio": 0.4 + 0.01 * (number % 7),
                "memory_used_bytes": 3e11,
                "memory_total_bytes": float(MEMORY_BYTES),
                "shm_used_bytes": 2e10,
                "shm_total_bytes": 1e12,
                "throttled_s": 0.02 * number,
            },
            unknown={"pressure_cpu_ratio": "the kernel does not tell: no such file"},
        )
        for index in range(world_size):
            yield from _of_rank(index, number, at + index)


def _of_rank(index: int, number: int, at: int) -> Iterator[Sample]:
    wave = (number + index) % 11 / 100
    yield Sample(
        at_ns=at,
        source=f"rank{index}",
        values={"memory_bytes": 6e9 + index * 1e6, "num_processes": 1.0, "cpu_cores": 1.1 + wave},
    )
    yield Sample(
        at_ns=at,
        source=f"rank{index}.workers",
        values={"memory_bytes": 3e9, "num_processes": 4.0, "cpu_cores": 3.6 + wave},
    )
    yield Sample(
        at_ns=at,
        source=f"gpu{index}",
        values={
            "kernel_running_ratio": 0.85 + wave,
            "memory_used_bytes": 2e10 + index * 1e6,
            "power_w": 600.0 + 100 * wave,
            "energy_j": 1e6 + 600.0 * number,
            "sm_clock_mhz": 1_755.0 - 15 * (index % 3),
            "temperature_c": 60.0 + index % 9,
            "throttle_reasons": 4.0 if (number + index) % 5 else 0.0,
        },
    )
