"""Analyses of runs as they come from training: every kind that the report must be able to show."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dpdoctor.analysis import Analysis, analyse
from dpdoctor.records import (
    PHASES,
    Check,
    Conversion,
    EventRecord,
    Launch,
    Loader,
    Rank,
    Sample,
    StepRecord,
    WindowRecord,
    WrappedModule,
)
from dpdoctor.spec import Gpu
from tests.builders import records
from tests.builders.specs import MS, mode_spec, run

BEGIN_NS = 1_000 * MS
PER_WINDOW = 5
# data_wait, h2d, forward, backward, optimizer, other: 100 ms
STARVED_MS = (40, 1, 20, 30, 5, 4)
COMPUTING_MS = (2, 1, 40, 50, 5, 2)
# How much longer forward takes in each window; the first is the warm-up.
JITTER_MS = (0, 1, 2, 1)
H100 = Gpu(name="NVIDIA H100 80GB HBM3", uuid="GPU-1", memory_bytes=85_000_000_000)


def steps(phases_ms: Sequence[int] = STARVED_MS, *, windows: int = 4, edge_at: int | None = None) -> list[StepRecord]:
    """Return steps back to back, five per window, the very first ten times as long; in `edge_at` an epoch begins."""
    found: list[StepRecord] = []
    at = BEGIN_NS
    for number in range(windows * PER_WINDOW):
        window = number // PER_WINDOW
        phases = [value * MS * (10 if number == 0 else 1) for value in phases_ms]
        phases[PHASES.index("forward")] += JITTER_MS[window % len(JITTER_MS)] * MS
        step = records.step(
            sum(phases) / MS,
            step=number,
            window=window,
            begin_ns=at,
            epoch_edge=number == edge_at,
            counted=number % PER_WINDOW != 0,
        )
        found.append(replace(step, phases_ns=tuple(phases)))
        at += sum(phases)
    return found


def windows(of: Sequence[StepRecord]) -> list[WindowRecord]:
    """Return the windows that the steps name: 0 is the warm-up, the others are measured and complete."""
    found = []
    for number in dict.fromkeys(step.window for step in of):
        counted = [step for step in of if step.window == number and step.counted]
        begin_ns, end_ns = counted[0].begin_ns, counted[-1].begin_ns + counted[-1].duration_ns
        kind = "measure" if number else "warmup"
        found.append(records.window(0, window=number, kind=kind, begin_ns=begin_ns, end_ns=end_ns))
    return found


def conversion(*, warnings: Sequence[str] = (), proof: Sequence[Check] = ()) -> Conversion:
    """Return one module, one loader and two patched places."""
    return Conversion(
        modules=(
            WrappedModule(name="ResNet", line="train.py:41", num_parameters=11_689_512, trainable_bytes=46_758_048),
        ),
        loaders=(
            Loader(
                line="train.py:30",
                dataset="FakeData",
                sampler="RandomSampler",
                batch_size=32,
                num_workers=2,
                num_batches=100,
                rule="per-device",
            ),
        ),
        optimizers=("SGD",),
        num_threads=1,
        patched=("Optimizer.step", "DataLoader.__iter__"),
        warnings=tuple(warnings),
        proof=tuple(proof),
    )


def rank(
    of: Sequence[StepRecord] | None = None, *, index: int = 0, events: Sequence[EventRecord] = (), **fields: object
) -> Rank:
    """Return a rank with everything that a run can record; more fields of its RankRecord by keyword."""
    found = steps() if of is None else of
    known = {"conversion": conversion(), "steps_per_epoch": 100, "observer_ns": 2e5, "peak_memory_bytes": 9 * 10**8}
    made = records.rank(found, windows(found), index=index, **{**known, **fields})
    return replace(made, events=tuple(events))


def launch(*ranks: Rank, mode: str = "single", samples: Sequence[Sample] = (), **fields: object) -> Launch:
    """Return a launch that began half a second before its first step; more fields of its LaunchRecord by keyword."""
    times = {"begin_ns": BEGIN_NS - 500 * MS, "end_ns": BEGIN_NS + 20_000 * MS}
    made = records.launch(*ranks, mode=mode, **{**times, **fields})
    return replace(made, samples=tuple(samples))


def host_samples(number: int = 30) -> list[Sample]:
    """Return readings of the host, rank 0 and its workers, every 200 ms; one reading cannot be had."""
    found = []
    for i in range(number):
        at = BEGIN_NS + 200 * MS * i
        host = {"cpu_ratio": 0.5 + 0.01 * i, "memory_used_bytes": 4e9, "memory_total_bytes": 16e9}
        unknown = {"pressure_cpu_ratio": "this kernel has no /proc/pressure"}
        workers = {"cpu_cores": 1.7, "memory_bytes": 4e8, "num_processes": 2.0}
        found.append(Sample(at_ns=at, source="host", values=host, unknown=unknown))
        found.append(Sample(at_ns=at, source="rank0", values={"cpu_cores": 1.0, "memory_bytes": 9e8}))
        found.append(Sample(at_ns=at, source="rank0.workers", values=workers))
    return found


def gpu_samples(number: int = 30) -> list[Sample]:
    """Return readings of one GPU every 200 ms: one under a name that nobody knows, a counter, and its power cap."""
    values = {
        "kernel_running_ratio": 0.91,
        "memory_used_bytes": 12e9,
        "power_w": 312.0,
        "sm_clock_mhz": 1755.0,
        "temperature_c": 61.0,
        "fan_vibes": 3.0,
        "throttle_reasons": 4.0,
    }
    unknown = {"ecc_errors": "this driver does not report them"}
    times = [BEGIN_NS + 200 * MS * i for i in range(number)]
    return [
        Sample(at_ns=at, source="gpu0", values={**values, "energy_j": 1e6 + 300.0 * i}, unknown=unknown)
        for i, at in enumerate(times)
    ]


def stalled_rank() -> Rank:
    """Return a rank with ten steps of 100 ms, one of which waits 300 ms more while the garbage collector runs."""
    slow = {"data_wait": 300, "forward": 100}
    found = [
        records.step(400, step=8, begin_ns=BEGIN_NS + 700 * MS, phases_ms=slow)
        if number == 8
        else records.step(100, step=number, begin_ns=BEGIN_NS + (number - 1 + 3 * (number > 8)) * 100 * MS)
        for number in range(1, 11)
    ]
    pause = EventRecord(kind="gc", at_ns=BEGIN_NS + 705 * MS, duration_ns=290 * MS, step=7, detail="generation 2")
    made = records.rank(found, [records.window(1300, begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 1300 * MS)])
    return replace(made, events=(pause,))


def cpu_run() -> Analysis:
    """Return single, an inactive DataParallel, DDP on two ranks and an FSDP that failed."""
    proof = (
        Check(name="parameters equal", ok=True, text="equal on 2 ranks"),
        Check(name="gradients reduced", ok=None, text="the trace has no sizes"),
    )
    wrapped = conversion(warnings=["every rank reads the whole iterable dataset"], proof=proof)
    gc = EventRecord(kind="gc", at_ns=BEGIN_NS + 900 * MS, duration_ns=3 * MS, step=3, detail="generation 2")
    ddp = [
        rank(
            steps((60, 1, 20, 48, 5, 8 - index), edge_at=12), index=index, world_size=2, events=[gc], conversion=wrapped
        )
        for index in range(2)
    ]
    failed = rank(steps(windows=1), world_size=2, status="failed", stage="wrap")
    modes = {
        "single": [launch(rank(steps(edge_at=12)), samples=host_samples())],
        "dp": [launch(rank(), mode="dp", status="inactive", reason="there is no accelerator")],
        "ddp": [launch(*ddp, mode="ddp", samples=host_samples())],
        "fsdp": [
            launch(
                failed,
                mode="fsdp",
                status="failed",
                reason="FSDP shards parameters; train.py line 88 calls deepcopy",
                stderr_tail=("Traceback (most recent call last):", "RuntimeError: deepcopy"),
            )
        ],
    }
    return analyse(records.run(modes, {"ddp": 2, "fsdp": 2}))


def gpu_run() -> Analysis:
    """Return single and DDP on two GPUs, with readings of one of them."""
    samples = [*host_samples(), *gpu_samples()]
    ddp = [rank(steps(COMPUTING_MS), index=index, world_size=2, device="cuda:0") for index in range(2)]
    modes = {
        mode_spec("single"): [launch(rank(steps(COMPUTING_MS), device="cuda:0"), samples=samples)],
        mode_spec("ddp", 2): [launch(*ddp, mode="ddp", samples=samples)],
    }
    return analyse(run(modes, devices=("0", "1"), gpus=(H100, H100)))


def rankless_run() -> Analysis:
    """Return a run whose only launch left no rank, and one mode that was never launched."""
    return analyse(records.run({"single": [launch(status="failed", reason="torchrun did not start")], "ddp": []}))


def failed_run() -> Analysis:
    """Return a run in which every mode failed after it had been measured."""
    reason = "gradients were not synchronised"
    modes = {
        "single": [launch(rank(), status="failed", reason="the disk is full")],
        "ddp": [launch(rank(world_size=2), rank(index=1, world_size=2), mode="ddp", status="failed", reason=reason)],
    }
    return analyse(records.run(modes, {"ddp": 2}))


def empty_run() -> Analysis:
    """Return a run without any mode."""
    return analyse(records.run({}))


def repeated_run() -> Analysis:
    """Return two launches each of single and of DDP, whose batches are split."""
    times = ((40, 1, 20, 30, 5, 4), (42, 1, 20, 30, 5, 4))
    modes = {
        mode_spec("single"): [launch(rank(steps(ms)), number=number) for number, ms in enumerate(times, 1)],
        mode_spec("ddp", 2, "global"): [
            launch(*(rank(steps(ms), index=i, world_size=2) for i in range(2)), mode="ddp", number=number)
            for number, ms in enumerate(times, 1)
        ],
    }
    return analyse(run(modes))


def hostile_run() -> Analysis:
    """Return a failed and a good mode in which every text of the run tries to break out of the page."""
    image, script = "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"
    event = EventRecord(kind=image, at_ns=BEGIN_NS, step=1, detail=script)
    wrapped = Conversion(
        modules=(WrappedModule(name=image, line=script, num_parameters=1, trainable_bytes=4, unused=(image,)),),
        warnings=(script,),
        patched=(image,),
        proof=(Check(name=image, ok=True, text=script),),
    )
    sample = Sample(at_ns=BEGIN_NS, source=image, values={script: 1.0}, unknown={image: script})
    good = launch(rank(events=[event], conversion=wrapped, device=image, host=script), samples=[sample])
    bad = launch(mode="ddp", status="failed", reason=image, stderr_tail=(script,))
    modes = {mode_spec("single"): [good], mode_spec("ddp", 2): [bad]}
    return analyse(run(modes, script=f"/home/me/{image}", args=(script,)))
