"""Analyses of runs made of traces alone, and of profile runs that left traces. Durations can be worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dpdoctor.analysis import TRACE_MODE, Analysis, analyse
from dpdoctor.digest import (
    HOST,
    Breakdown,
    Bucket,
    CollectiveSize,
    DataParallelCost,
    DeviceDigest,
    DeviceStep,
    Digest,
    NamedTime,
    NotMeasured,
    Quantiles,
    ShardUnit,
    SmallCalls,
)
from dpdoctor.records import Rank
from dpdoctor.spec import Gpu
from tests.builders import runs
from tests.builders.simulated_ranks import digests, lockstep
from tests.builders.specs import MS, mode_spec, run

NUM_STEPS = 20
WORK_MS, TRANSFER_MS, LATE_MS = 60, 10, 30
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "void cutlass::Kernel<" + "cutlass::gemm::threadblock::Mma<float, 128>, " * 60 + ">",
    "カーネル_ядро_🔥",
    "\N{RIGHT-TO-LEFT OVERRIDE}esrever\x1b[31m\x00",
    "",
)


def breakdown(
    compute: int, exposed: int = 0, h2d: int = 0, copy: int = 0, idle: int = 0, *, comm: int = 0
) -> Breakdown:
    """Return a breakdown of these milliseconds."""
    return Breakdown(
        compute_ns=compute * MS,
        exposed_comm_ns=exposed * MS,
        h2d_ns=h2d * MS,
        copy_ns=copy * MS,
        idle_ns=idle * MS,
        comm_ns=comm * MS,
    )


def device(index: int = 0, *, steps: int = 3, of: Breakdown | None = None, name: str = "NVIDIA H100") -> DeviceDigest:
    """Return a device whose steps are all alike: 100 ms, of which 46 compute, 31 talk unhidden and 18 idle."""
    found = of or breakdown(46, 31, 4, 1, 18, comm=62)
    idle_by = {"data": 3 * found.idle_ns // 4, "dispatch": found.idle_ns - 3 * found.idle_ns // 4}
    return DeviceDigest(
        index=index,
        name=name,
        begin_ns=0,
        whole=found,
        steps=tuple(
            DeviceStep(
                step=number,
                begin_ns=number * found.total_ns,
                end_ns=(number + 1) * found.total_ns,
                breakdown=found,
                idle_by=idle_by,
                phases_ns={"forward": 20 * MS, "backward": 26 * MS},
            )
            for number in range(steps)
        ),
        launch_delay=Quantiles(n=9, p50_ns=8_000, p90_ns=2 * MS, max_ns=3 * MS),
        launches=300 * steps,
        idle_by=idle_by,
    )


def size(operation: str = "all_reduce", num_bytes: int | None = 25_000_000, **fields: object) -> CollectiveSize:
    """Return four calls of 10 ms, half of it exposed."""
    known = CollectiveSize(
        operation=operation,
        group="0",
        group_size=4,
        num_bytes=num_bytes,
        count=4,
        total_ns=40 * MS,
        exposed_ns=20 * MS,
        median_ns=10 * MS,
        min_ns=9 * MS,
        algbw_gb_s=None if num_bytes is None else 2.5,
        busbw_gb_s=None if num_bytes is None else 3.75,
    )
    return replace(known, **fields)


def late_rank(num_ranks: int = 4, late: int | None = 2, *, num_steps: int = NUM_STEPS) -> list[Digest]:
    """Return ranks on GPUs of which one, if any, loses 30 ms before the only call of every step."""
    segments = np.full((num_steps, num_ranks), WORK_MS * MS)
    if late is not None:
        segments[:, late] += LATE_MS * MS
    made = digests(lockstep(segments, [TRANSFER_MS * MS] * num_steps))
    return [
        replace(
            digest,
            backend="nccl",
            host="node<b>7</b>",
            has_device=True,
            devices=(device(),),
            kernels=(NamedTime(name="gemm", count=12, total_ns=36 * MS, device=0),),
            operators=(NamedTime(name="aten::mm", count=12, total_ns=8 * MS, self_ns=6 * MS),),
            collectives=(size(),),
            not_measured=(NotMeasured(what="memory", reason="the trace was recorded without profile_memory"),),
        )
        for digest in made
    ]


def receiving(ranks: Sequence[Rank], percent: int) -> list[Rank]:
    """Return the ranks with traces whose steps receive for this share of their time, and compute otherwise."""
    of = device(of=breakdown(100 - percent, h2d=percent))
    on_gpu = any(rank.record is not None and rank.record.device_type == "cuda" for rank in ranks)
    return [
        replace(rank, digest=replace(digest, devices=(of,), has_device=on_gpu))
        for rank, digest in zip(ranks, late_rank(len(ranks), 0), strict=True)
    ]


def trace_run(*found: Digest, errors: Sequence[str] = ()) -> Analysis:
    """Return what `dpdoctor analyze` makes of these digests."""
    ranks = [
        Rank(index=place, record=None, steps=(), windows=(), events=(), trace=None, digest=digest)
        for place, digest in enumerate(found)
    ]
    launch = runs.launch(*ranks, mode=TRACE_MODE, stderr_tail=tuple(errors))
    return analyse(run({mode_spec(TRACE_MODE, max(1, len(ranks))): [launch]}, script="/data/traces", args=()))


def late_run() -> Analysis:
    """Return four ranks of which rank 2 is late by 30 ms in every step."""
    return trace_run(*late_rank())


def cpu_trace() -> Analysis:
    """Return one rank of 300 without a device, without steps, whose file is cut short."""
    (digest,) = late_rank(1, 0)
    host = replace(device(HOST, steps=0, name="CPU"), launch_delay=None, launches=0)
    return trace_run(
        replace(
            digest,
            rank=34,
            world_size=300,
            has_device=False,
            devices=(host,),
            kernels=(),
            damage="the file is cut short at byte 4711",
            notes=("two events have no end",),
            not_measured=(NotMeasured(what="steps", reason="the trace has no ProfilerStep# spans"),),
        ),
        errors=["/data/traces/rank7.json: not JSON"],
    )


def everything() -> Digest:
    """Return a rank with every kind of entry that a digest can have, under names that try to break out of the page."""
    (digest,) = late_rank(1, 0)
    tensors = size(HOSTILE[0], None)
    return replace(
        digest,
        source=HOSTILE[1],
        host=HOSTILE[0],
        backend=HOSTILE[1],
        devices=(device(0, name=HOSTILE[0]), replace(device(1), peak_allocated_bytes=5_000_000_000)),
        kernels=tuple(NamedTime(name=name, count=3, total_ns=9 * MS, device=0) for name in HOSTILE),
        operators=tuple(NamedTime(name=name, count=3, total_ns=9 * MS, self_ns=MS) for name in HOSTILE),
        collectives=(size(), tensors, size(HOSTILE[2], 64)),
        small_calls=(
            SmallCalls(
                operation="all_reduce",
                group=HOSTILE[1],
                latency_ns=30_000,
                bandwidth_gb_s=12.5,
                limit_bytes=94_000,
                count=100,
                small_count=80,
                small_total_ns=4 * MS,
                small_exposed_ns=3 * MS,
            ),
        ),
        buckets=(
            Bucket(order=0, num_bytes=25_000_000, ready_ns=10 * MS, end_ns=20 * MS, exposed_ns=2 * MS, tail_ns=0),
            Bucket(order=1, num_bytes=None, ready_ns=30 * MS, end_ns=45 * MS, exposed_ns=5 * MS, tail_ns=5 * MS),
        ),
        shard_units=(
            ShardUnit(
                name=HOSTILE[2],
                all_gathers=2.0,
                reduce_scatters=1.0,
                gathered_bytes=3e6,
                scattered_bytes=None,
                exposed_ns=2.5e6,
                prefetched=0.5,
            ),
        ),
        data_parallel=DataParallelCost(
            scatter_ns=1e6,
            replicate_ns=5e6,
            parallel_apply_ns=4e7,
            gather_ns=5e5,
            reduce_ns=3e6,
            device_ns={0: {"replicate": 4e6, "other": 3e7, "busy": 9e7}, 1: {"other": 3e7, "busy": 6e7}},
        ),
        damage=HOSTILE[0],
        notes=(HOSTILE[1],),
        not_measured=(NotMeasured(what=HOSTILE[0], reason=HOSTILE[1]),),
    )


def hostile_traces() -> Analysis:
    """Return two traces of the same rank, both full of hostile names, and the errors of others."""
    return trace_run(everything(), replace(everything(), rank=None), errors=HOSTILE[:2])


def unknown_communication(reason: str = "no kernel is known to communicate") -> Analysis:
    """Return four ranks of which nobody knows what they communicate: 77 ms of each step may be it, 18 are idle."""
    return trace_run(*(digest.without_communication(reason) for digest in late_rank()))


def partly_unknown_communication() -> Analysis:
    """Return four ranks of which one does not know what it communicates, for a reason with hostile names."""
    first, *others = late_rank()
    return trace_run(first.without_communication("; ".join(HOSTILE)), *others)


def unreadable() -> Analysis:
    """Return a run of traces none of which could be read."""
    return trace_run(errors=["/data/traces/rank7.json: not JSON"])


def traced_profile() -> Analysis:
    """Return a profile run: single without a trace, DDP on two GPUs with one rank late, FSDP that failed."""
    gpus = (Gpu(name="NVIDIA H100", uuid="GPU-1", memory_bytes=80_000_000_000),) * 2
    ddp = [
        replace(runs.rank(runs.steps(runs.COMPUTING_MS), index=index, world_size=2), digest=digest)
        for index, digest in enumerate(late_rank(2, 1))
    ]
    modes = {
        mode_spec("single"): [runs.launch(runs.rank(runs.steps(runs.COMPUTING_MS)))],
        mode_spec("ddp", 2): [runs.launch(*ddp, mode="ddp")],
        mode_spec("fsdp", 2): [
            runs.launch(*ddp, mode="fsdp", status="failed", reason="the parameters are not equal on 2 ranks")
        ],
    }
    return analyse(run(modes, devices=("0", "1"), gpus=gpus))
