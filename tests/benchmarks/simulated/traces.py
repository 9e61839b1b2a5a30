"""The digest of a simulated rank's trace: one GPU, gradients reduced in buckets, one rank that comes late."""

from __future__ import annotations

import random

from dpdoctor.digest import (
    Breakdown,
    Bucket,
    Calls,
    CollectiveSize,
    DeviceDigest,
    DeviceStep,
    Digest,
    NamedTime,
    NotMeasured,
    Quantiles,
    SmallCalls,
)

from .timetable import MS, TRACE_STEPS, TRACED_MS

# Bytes of the gradient buckets of a step, in their order.
BUCKETS = (1_000_000, 26_000_000, 26_000_000, 26_000_000, 26_000_000, 4_000_000)
LATENCY_NS, BANDWIDTH_GB_S = 40_000, 20.0
# Every rank reaches a bucket at about the same time; the late one so much later, before the first of a step.
LATE_MS, JITTER_MS = 12.0, 0.4
NUM_KERNELS = 60


def digest(rank: int, world_size: int, *, late: int) -> Digest:
    """Return what is kept of a rank's trace; `late` is the rank that keeps the others waiting. One talks to nobody."""
    chance = random.Random(rank)
    calls = _calls(rank, world_size, late)
    return Digest(
        source=f"rank{rank}.json.gz",
        rank=rank,
        world_size=world_size,
        backend="nccl" if world_size > 1 else None,
        host=f"node{rank // 8}",
        base_ns=1_700_000_000_000_000_000,
        has_device=True,
        step_source="ProfilerStep",
        num_events=40_000,
        devices=(_device(chance, talks=world_size > 1),),
        kernels=_names("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_{}_nn_align8>", chance, device=0),
        operators=_names("aten::operator_{}", chance),
        collectives=_sizes(calls, world_size),
        calls=calls,
        small_calls=_fit(rank, world_size),
        buckets=_buckets() if world_size > 1 else (),
        not_measured=(NotMeasured(what="memory", reason="the trace was recorded without profile_memory"),),
    )


def _device(chance: random.Random, *, talks: bool) -> DeviceDigest:
    steps = tuple(_step(number, chance, talks=talks) for number in range(1, TRACE_STEPS - 1))
    whole = _budget(len(steps) * TRACED_MS, talks=talks)
    return DeviceDigest(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        begin_ns=0,
        whole=whole,
        steps=steps,
        launch_delay=Quantiles(n=9_000, p50_ns=9_000, p90_ns=2 * MS, max_ns=5 * MS),
        launches=900 * len(steps),
        idle_by={"data": whole.idle_ns},
    )


def _step(number: int, chance: random.Random, *, talks: bool) -> DeviceStep:
    found = _budget(TRACED_MS * chance.gauss(1, 0.01), talks=talks)
    data, dispatch = round(0.7 * found.idle_ns), round(0.2 * found.idle_ns)
    begin = round(number * TRACED_MS * MS)
    return DeviceStep(
        step=number,
        begin_ns=begin,
        end_ns=begin + found.total_ns,
        breakdown=found,
        idle_by={"data": data, "dispatch": dispatch, "python": found.idle_ns - data - dispatch},
        phases_ns={"forward": found.compute_ns // 3, "backward": found.compute_ns // 2, "optimizer": 5 * MS},
    )


def _budget(total_ms: float, *, talks: bool) -> Breakdown:
    exposed, h2d, copy, idle = (round(share * total_ms * MS) for share in (0.14 * talks, 0.01, 0.005, 0.15))
    compute = round(total_ms * MS) - exposed - h2d - copy - idle
    return Breakdown(
        compute_ns=compute,
        exposed_comm_ns=exposed,
        h2d_ns=h2d,
        copy_ns=copy,
        idle_ns=idle,
        comm_ns=2 * exposed,
    )


def _calls(rank: int, world_size: int, late: int) -> Calls:
    """Return the calls of all steps. Ranks leave each together; the late one comes last to the first of a step."""
    begin, end, step = [], [], []
    for number in range(TRACE_STEPS * (world_size > 1)):
        for order, num_bytes in enumerate(BUCKETS):
            arrived = (number * TRACED_MS + 40 + 14 * order) * MS
            # The same on every rank: when the last one comes.
            everyone = arrived + (LATE_MS if order == 0 else JITTER_MS) * MS
            own = random.Random(rank * 10_000 + number * 100 + order).random() * JITTER_MS / 2
            mine = everyone if order == 0 and rank == late else arrived + own * MS
            begin.append(round(mine))
            end.append(round(everyone + transfer_ns(num_bytes)))
            step.append(number)
    num = len(begin)
    return Calls(
        names=("all_reduce", "0"),
        causes=("data",),
        operation=(0,) * num,
        group=(1,) * num,
        seq=tuple(range(num)),
        num_bytes=tuple(BUCKETS[place % len(BUCKETS)] for place in range(num)),
        begin_ns=tuple(begin),
        end_ns=tuple(end),
        exposed_ns=tuple((after - before) // 2 for before, after in zip(begin, end, strict=True)),
        step=tuple(step),
        segment_cause=(0,) * num,
    )


def transfer_ns(num_bytes: int) -> float:
    """Return what a reduction of so many bytes takes when nobody is waited for."""
    return LATENCY_NS + num_bytes / BANDWIDTH_GB_S


def _sizes(calls: Calls, world_size: int) -> tuple[CollectiveSize, ...]:
    found = []
    for num_bytes in sorted(set(calls.num_bytes)):
        at = [place for place, size in enumerate(calls.num_bytes) if size == num_bytes]
        durations = sorted(calls.end_ns[place] - calls.begin_ns[place] for place in at)
        median = durations[len(durations) // 2]
        algbw = num_bytes / median
        found.append(
            CollectiveSize(
                operation="all_reduce",
                group="0",
                group_size=world_size,
                num_bytes=num_bytes,
                count=len(at),
                total_ns=sum(durations),
                exposed_ns=sum(calls.exposed_ns[place] for place in at),
                median_ns=median,
                min_ns=durations[0],
                algbw_gb_s=algbw,
                busbw_gb_s=algbw * 2 * (world_size - 1) / world_size,
            )
        )
    return tuple(found)


def _fit(rank: int, world_size: int) -> tuple[SmallCalls, ...]:
    if world_size == 1:
        return ()
    return (
        SmallCalls(
            operation="all_reduce",
            group="0",
            latency_ns=LATENCY_NS + rank % 7,
            bandwidth_gb_s=BANDWIDTH_GB_S,
            limit_bytes=200_000,
            count=len(BUCKETS) * TRACE_STEPS,
            small_count=0,
            small_total_ns=0,
            small_exposed_ns=0,
        ),
    )


def _buckets() -> tuple[Bucket, ...]:
    ready = [round((10 + 10 * order) * MS) for order in range(len(BUCKETS))]
    ends = [at + round(transfer_ns(size)) for at, size in zip(ready, BUCKETS, strict=True)]
    return tuple(
        Bucket(order=order, num_bytes=size, ready_ns=at, end_ns=end, exposed_ns=end - at, tail_ns=max(0, end - 58 * MS))
        for order, (size, at, end) in enumerate(zip(BUCKETS, ready, ends, strict=True))
    )


def _names(pattern: str, chance: random.Random, **fields: int) -> tuple[NamedTime, ...]:
    times = [round(chance.uniform(0.1, 40) * MS) for _ in range(NUM_KERNELS)]
    self_ns = {} if fields else {"self_ns": MS}
    return tuple(
        NamedTime(name=pattern.format(number), count=120, total_ns=time, **fields, **self_ns)
        for number, time in enumerate(times)
    )
