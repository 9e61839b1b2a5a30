"""DDP's buckets, FSDP's units, and DataParallel's parts.

Traces of two GPUs are written, with the names of DataParallel's parts; that of two replicas on one GPU is real.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdoctor.attribution.digesting import digest
from dpdoctor.attribution.wrappers import MAX_BUCKETS, buckets, data_parallel_cost, shard_units
from dpdoctor.digest import Bucket, DataParallelCost, ShardUnit
from dpdoctor.trace.model import Kind, Trace
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import (
    AUTOGRAD,
    GLOO_A,
    MAIN,
    US,
    Kineto,
    Observed,
    covered_ns,
    of_two_ranks,
    real,
    recorded,
    rows_named,
    shapes,
)

NODE = "autograd::engine::evaluate_function: "
GRADIENT = f"{NODE}torch::autograd::AccumulateGrad"
FORWARD = "DistributedDataParallel.forward"
COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


def buckets_of(observed: Observed) -> tuple[Bucket, ...]:
    return buckets(observed.trace, observed.steps, observed.devices, observed.found)


def reduced(kineto: Kineto, called: float, begin: float, end: float, *, nelems: int, device: int = 0) -> None:
    """Write an all-reduce of NCCL that is called from the hook of a gradient."""
    kineto.op(GRADIENT, called - 1, called + 4, thread=AUTOGRAD)
    kineto.op("c10d::allreduce_", called, called + 3, thread=AUTOGRAD)
    metadata = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": nelems}
    kineto.kernel("ncclDevKernel_AllReduce", begin, end, called=called + 1, thread=AUTOGRAD, device=device, **metadata)


def backward_on_device(kineto: Kineto, at: float, jitter: float = 0) -> None:
    """Write a pass whose host begins at `at` and whose device computes from at + 100 to at + 300."""
    kineto.span(FORWARD, at - 50, at - 10)
    kineto.kernel("gemm", at - 45, at + 100, called=at - 49)  # the forward's
    kineto.op(f"{NODE}MmBackward0", at, at + 5, thread=AUTOGRAD)
    kineto.kernel("gemm", at + 100, at + 180, called=at + 1, thread=AUTOGRAD)
    reduced(kineto, at + 10, at + 180, at + 250, nelems=1000)  # called early, ready when the gradient is computed
    kineto.op(f"{NODE}MmBackward0", at + 20, at + 25, thread=AUTOGRAD)
    kineto.kernel("gemm", at + 180, at + 300, called=at + 21, thread=AUTOGRAD)
    reduced(kineto, at + 340, at + 345, at + 400 + jitter, nelems=50)  # called late
    kineto.op(COPY_BACK, at + 350, at + 352, thread=AUTOGRAD)
    kineto.kernel("copy", at + 401 + jitter, at + 410 + jitter, called=at + 351, thread=AUTOGRAD)


def test_buckets_of_a_device_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000, 3000, 4000, 5000)
    for number, jitter in enumerate((900, 0, 10, 50, 900)):  # the first and last step do not count
        backward_on_device(kineto, 1000 * number + 60, min(jitter, 400))
    first, second = buckets_of(kineto.observe(tmp_path))
    # Times from at + 100, when the backward begins to compute; jitter is 10 in the median.
    assert first == Bucket(order=0, num_bytes=4000, ready_ns=80 * US, end_ns=150 * US, exposed_ns=0, tail_ns=0)
    assert second == Bucket(
        order=1, num_bytes=200, ready_ns=240 * US, end_ns=310 * US, exposed_ns=65 * US, tail_ns=65 * US
    )


def test_buckets_of_a_host_by_hand(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.steps(0, 1000)
    kineto.op("aten::mm", 0, 90)
    kineto.op(f"{NODE}MmBackward0", 100, 150)
    for called, begin, end, nelems in ((151, 160, 190, 100), (210, 212, 260, 20)):
        kineto.op(GRADIENT, called - 1, called + 4)
        kineto.op("c10d::allreduce_", called, called + 2)
        kineto.span("gloo:all_reduce", begin, end, thread=GLOO_A, **shapes(nelems))
    kineto.op(f"{NODE}MmBackward0", 156, 205)
    kineto.op(COPY_BACK, 262, 270)
    assert buckets_of(kineto.observe(tmp_path)) == (
        Bucket(order=0, num_bytes=400, ready_ns=51 * US, end_ns=90 * US, exposed_ns=0, tail_ns=0),
        Bucket(order=1, num_bytes=80, ready_ns=110 * US, end_ns=160 * US, exposed_ns=46 * US, tail_ns=46 * US),
    )


@pytest.mark.parametrize(
    ("buckets_of_passes", "expected"),
    [((1, 1, 2, 2, 1), [400, 800]), ((2, 2, 1, 1, 2), [400])],  # the first and last are not whole
)
def test_passes_with_another_number_of_buckets_do_not_count(
    tmp_path: Path, buckets_of_passes: tuple[int, ...], expected: list[int]
) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000, 3000, 4000, 5000)
    for number, times in enumerate(buckets_of_passes):
        kineto.span(FORWARD, 1000 * number, 1000 * number)
        kineto.op(f"{NODE}MmBackward0", 1000 * number, 1000 * number + 5, thread=AUTOGRAD)
        kineto.kernel("gemm", 1000 * number + 1, 1000 * number + 90, called=1000 * number + 1, thread=AUTOGRAD)
        for call in range(times):
            begin = 1000 * number + 100 * (call + 1)
            reduced(kineto, begin, begin + 2, begin + 50, nelems=100 * (call + 1))
    assert [bucket.num_bytes for bucket in buckets_of(kineto.observe(tmp_path))] == expected


def test_sizes_that_change_from_pass_to_pass_are_unknown(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000)
    for number in range(4):
        at = 500 * number
        kineto.span(FORWARD, at, at + 1)
        kineto.op(f"{NODE}MmBackward0", at + 2, at + 5, thread=AUTOGRAD)
        kineto.kernel("gemm", at + 3, at + 90, called=at + 3, thread=AUTOGRAD)
        reduced(kineto, at + 100, at + 102, at + 150, nelems=100 + number)
    assert [bucket.num_bytes for bucket in buckets_of(kineto.observe(tmp_path))] == [None]


def test_other_all_reduces_are_no_buckets(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.op(f"{NODE}SyncBatchNormBackward", 0, 20, thread=AUTOGRAD)
    kineto.op("c10d::allreduce_", 5, 9, thread=AUTOGRAD)
    kineto.kernel("ncclDevKernel_AllReduce", 10, 30, called=6, thread=AUTOGRAD)
    kineto.op("c10d::allreduce_", 105, 109, thread=MAIN)
    kineto.kernel("ncclDevKernel_AllReduce", 110, 130, called=106, thread=MAIN)
    kineto.op(GRADIENT, 100, 120, thread=AUTOGRAD)  # at that time, on another thread
    assert buckets_of(kineto.observe(tmp_path)) == ()


@pytest.mark.parametrize(
    ("accumulated", "by_ddp", "num"),
    [
        pytest.param((100, 102), True, 1, id="DDP's, when the gradient is there"),
        pytest.param((100, 102), False, 0, id="a hook of the script's on the node"),
        pytest.param((100, 118), True, 0, id="a hook of the script's on the parameter, after it accumulated"),
        pytest.param((116, 118), True, 0, id="a hook of the script's on the parameter, before it does"),
    ],
)
def test_what_hooks_of_the_script_reduce_are_no_buckets(
    tmp_path: Path, accumulated: tuple[float, float], by_ddp: bool, num: int
) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.steps(0, 1000)
    if by_ddp:
        kineto.span(FORWARD, 0, 40)
    kineto.op(f"{NODE}MmBackward0", 50, 90)
    kineto.op(GRADIENT, 99, 120)
    kineto.op("torch::autograd::AccumulateGrad", *accumulated)
    kineto.op("c10d::allreduce_", 105, 115)
    kineto.span("gloo:all_reduce", 107, 190, thread=GLOO_A, **shapes(100))
    assert len(buckets_of(kineto.observe(tmp_path))) == num


def test_a_bucket_for_each_of_many_parameters(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 100_000)
    kineto.span(FORWARD, 0, 0)
    kineto.op(f"{NODE}MmBackward0", 0, 5, thread=AUTOGRAD)
    kineto.kernel("gemm", 1, 90, called=1, thread=AUTOGRAD)
    for number in range(MAX_BUCKETS + 5):
        reduced(kineto, 10 * number + 10, 10 * number + 12, 10 * number + 14, nelems=8)
    assert len(buckets_of(kineto.observe(tmp_path))) == MAX_BUCKETS


@needs_real_traces
def test_buckets_of_a_real_trace_are_what_a_plain_loop_finds() -> None:
    observed = real("a100x2_ddp_rank0_collective_args.json.gz")
    trace, events = observed.trace, observed.trace.events
    # Of three steps one is whole: the second.
    (step,) = rows_named(trace, Kind.ANNOTATION, "ProfilerStep#5").tolist()
    begin, end = int(events.begin_ns[step]), int(events.end_ns[step])
    runtime = {int(events.correlation[row]): row for row in rows_named(trace, Kind.RUNTIME, "cuda").tolist()}
    nodes = rows_named(trace, Kind.CPU_OP, NODE).tolist()
    compute, reduces = [], []
    for row in rows_named(trace, Kind.KERNEL, "").tolist():
        launch = runtime[int(events.correlation[row])]
        called = int(events.begin_ns[launch])
        if not begin <= called < end or events.thread[launch] != events.thread[nodes[0]]:
            continue
        if trace.names[events.name[row]].startswith("ncclKernel_AllReduce"):
            reduces.append((called, row))
        elif any(events.begin_ns[node] <= called < events.end_ns[node] for node in nodes):
            compute.append(row)
    backward = (int(events.begin_ns[compute].min()), int(events.end_ns[compute].max()))
    found = buckets_of(observed)
    assert [bucket.num_bytes for bucket in found] == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
    for bucket, (_, row) in zip(found, sorted(reduces), strict=True):
        span = (int(events.begin_ns[row]), int(events.end_ns[row]))
        assert bucket.end_ns == span[1] - backward[0]
        assert bucket.tail_ns == max(0, span[1] - max(span[0], backward[1]))
        assert 0 < bucket.ready_ns <= span[0] - backward[0]
    assert found[-1].tail_ns > 2_000_000
    assert all(bucket.tail_ns == 0 for bucket in found[:-1])


@needs_real_traces
@pytest.mark.parametrize("name", ["a100x16_sendrecv_rank0.json.gz", "a100x8_rank3.json.gz"])
def test_buckets_of_other_real_traces(name: str) -> None:
    # On eight a hook on a parameter divides its gradient and reduces it, too: before the gradient is accumulated.
    found = buckets_of(real(name))
    assert [bucket.order for bucket in found] == [0, 1]
    assert all(bucket.ready_ns < bucket.end_ns for bucket in found)


@needs_real_traces
def test_reductions_inside_of_a_compiled_backward_are_not_taken_for_buckets() -> None:
    assert buckets_of(real("v100x2_ddp_rank1.json.gz")) == ()


def test_recorded_buckets_hold_the_model() -> None:
    observed = recorded("gloo_ddp_rank0.json.gz")
    found = buckets_of(observed)
    # DDP's first bucket closes above 1 MiB: the head and the last `down`; the others are limited to 25 MiB.
    last = 30_760 + (1536 * 768 + 768) * 4
    assert [bucket.num_bytes for bucket in found] == [last, 3 * 9_446_400 + 30_760 - last]
    assert found[0].tail_ns == 0
    assert found[1].end_ns - found[1].ready_ns > found[1].tail_ns > 0
    # What no operator covers of the last bucket is what outlasts the backward, but for what copies it back.
    assert found[1].tail_ns == pytest.approx(found[1].exposed_ns, rel=0.05)


def test_recorded_buckets_are_what_a_plain_loop_finds() -> None:
    observed = recorded("gloo_ddp_rank0.json.gz")
    trace, events = observed.trace, observed.trace.events
    operators = events[(events.kind == Kind.CPU_OP) & (events.thread == observed.steps.thread)]
    expected: list[list[tuple[int, int, int, int]]] = [[], []]
    for step in ("ProfilerStep#2", "ProfilerStep#3"):
        (row,) = rows_named(trace, Kind.ANNOTATION, step).tolist()
        begin, end = int(events.begin_ns[row]), int(events.end_ns[row])

        def within(kind: Kind, name: str, begin: int = begin, end: int = end) -> list[int]:
            rows = rows_named(trace, kind, name).tolist()
            return sorted((r for r in rows if begin <= events.begin_ns[r] < end), key=lambda r: int(events.begin_ns[r]))

        nodes = within(Kind.CPU_OP, NODE)
        first, last = int(events.begin_ns[nodes].min()), int(events.end_ns[nodes].max())
        calls = zip(within(Kind.CPU_OP, "c10d::allreduce_"), within(Kind.ANNOTATION, "gloo:"), strict=True)
        for bucket, (call, span) in enumerate(calls):
            b, e = int(events.begin_ns[span]), int(events.end_ns[span])
            exposed = e - b - covered_ns((b, e), operators.spans)
            expected[bucket].append((int(events.begin_ns[call]) - first, e - first, exposed, max(0, e - max(b, last))))
    for bucket, steps in zip(buckets_of(observed), expected, strict=True):
        medians = [int(median(values)) for values in zip(*steps, strict=True)]
        assert [bucket.ready_ns, bucket.end_ns, bucket.exposed_ns, bucket.tail_ns] == medians


def units_of(observed: Observed) -> tuple[ShardUnit, ...]:
    return shard_units(observed.trace, observed.steps, observed.devices, observed.found)


def gathered(kineto: Kineto, unit: str, called: float, begin: float, end: float, *, ahead: str = "") -> None:
    """Write an all-gather of NCCL: 100 floats of each of four ranks; `ahead` names the kind of prefetch."""
    if ahead:
        kineto.span(f"FSDP::{ahead}_prefetch for {unit}", called - 2, called + 8)
    kineto.span(f"FSDP::all_gather ({unit})" if unit else "FSDP::all_gather", called - 1, called + 7)
    metadata = {"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 400}
    kineto.op("record_param_comms", called + 1, called + 5, **metadata, **{"Group size": 4})
    kineto.kernel("ncclDevKernel_AllGather_RING_LL", begin, end, called=called + 2)


def scattered(kineto: Kineto, unit: str, called: float, begin: float, end: float) -> None:
    kineto.span(f"FSDP::post_backward_reduce ({unit})", called, called + 8, thread=AUTOGRAD)
    metadata = {"Collective name": "_reduce_scatter_base", "dtype": "Float", "In msg nelems": 400, "Group size": 4}
    kineto.op("record_param_comms", called + 1, called + 5, thread=AUTOGRAD, **metadata)
    kineto.kernel("ncclDevKernel_ReduceScatter_Sum", begin, end, called=called + 2, thread=AUTOGRAD)


def test_units_of_a_device_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000, 3000, 4000)
    for at in (0, 1000, 2000, 3000):  # the first and last do not count
        gathered(kineto, "", at + 10, at + 20, at + 50)
        gathered(kineto, "layers.0", at + 30, at + 60, at + 100)
        gathered(kineto, "layers.0", at + 200, at + 250, at + 300, ahead="backward")
        scattered(kineto, "layers.0", at + 400, at + 420, at + 500)
        kineto.kernel("gemm", at + 80, at + 260, called=at + 70)
    root, layer = units_of(kineto.observe(tmp_path))
    assert root == ShardUnit(
        name="root",
        all_gathers=1,
        reduce_scatters=0,
        gathered_bytes=1600,
        scattered_bytes=0,
        exposed_ns=30 * US,
        prefetched=0,
    )
    assert layer == ShardUnit(
        name="layers.0",
        all_gathers=2,
        reduce_scatters=1,
        gathered_bytes=3200,
        scattered_bytes=1600,
        exposed_ns=(20 + 40 + 80) * US,
        prefetched=0.5,
    )


def test_calls_that_fsdp_does_not_name_belong_to_no_unit(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.span("FSDP::all_gather_copy_out (layers.0)", 5, 50)
    kineto.kernel("ncclDevKernel_AllGather_RING_LL", 10, 20, called=8)
    kineto.span("FSDP::backward_prefetch for all_gather", 60, 90)
    kineto.kernel("ncclDevKernel_AllGather_RING_LL", 70, 80, called=68)
    assert units_of(kineto.observe(tmp_path)) == ()


@pytest.mark.parametrize(
    ("suffix", "name"),
    [("", "root"), (" ()", "root"), (" (blocks.0.mlp)", "blocks.0.mlp"), (" (blocks.0) [pg=3]", "blocks.0 [pg=3]")],
)
def test_units_are_called_as_torch_writes_them(tmp_path: Path, suffix: str, name: str) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.span(f"FSDP::post_backward_reduce{suffix}", 5, 50)
    kineto.kernel("ncclDevKernel_ReduceScatter_Sum", 10, 20, called=8)
    (unit,) = units_of(kineto.observe(tmp_path))
    assert (unit.name, unit.reduce_scatters, unit.scattered_bytes, unit.prefetched) == (name, 1, None, None)


def test_units_of_a_host_by_hand(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.steps(0, 1000)
    kineto.span("FSDP::all_gather (head)", 10, 60)
    kineto.op("c10d::_allgather_base_", 12, 14, **shapes(20, 10))
    kineto.span("gloo:all_gather", 15, 55, thread=GLOO_A, **shapes(10))
    kineto.span("FSDP::post_backward_reduce (head)", 100, 160)
    kineto.op("c10d::_reduce_scatter_base_", 102, 104, **shapes(10, 20))
    kineto.span("gloo:all_reduce", 105, 155, thread=GLOO_A, **shapes(20))
    (unit,) = units_of(kineto.observe(tmp_path))
    assert (unit.gathered_bytes, unit.scattered_bytes, unit.exposed_ns) == (80, 80, 90 * US)


def test_without_steps_nothing_is_per_step(tmp_path: Path) -> None:
    kineto = Kineto()
    gathered(kineto, "layers.0", 10, 20, 30)
    assert units_of(kineto.observe(tmp_path)) == ()


def test_recorded_units_are_those_of_the_model() -> None:
    units = {unit.name: unit for unit in units_of(recorded("gloo_fsdp_rank0.json.gz"))}
    assert list(units) == ["root", "blocks.0", "blocks.1"]
    for name, num_bytes, all_gathers in (("root", 30_760, 1), ("blocks.0", 9_446_400, 2), ("blocks.1", 9_446_400, 2)):
        unit = units[name]
        assert (unit.all_gathers, unit.reduce_scatters) == (all_gathers, 1)
        assert (unit.gathered_bytes, unit.scattered_bytes) == (all_gathers * num_bytes, num_bytes)
    # The root keeps its parameters for the backward; each block's are asked for ahead of its backward.
    assert [unit.prefetched for unit in units.values()] == [0, 0.5, 0.5]


def pieces_between_hooks(trace: Trace, thread: int) -> NDArray[np.int64]:
    """Return when operators of a thread ran, cut where hooks of fully_shard in them begin and end, one by one."""
    hooks = [span for name, span in spans_of(trace, Kind.ANNOTATION, thread) if name.startswith("FSDP::")]
    pieces = []
    for _, (begin, end) in spans_of(trace, Kind.CPU_OP, thread):
        reached = begin
        for first, last in sorted(hooks):
            if reached <= first and last <= end:
                pieces.append((reached, first))
                reached = last
        pieces.append((reached, end))
    return np.array(pieces)


def spans_of(trace: Trace, kind: Kind, thread: int) -> list[tuple[str, tuple[int, int]]]:
    events = trace.events
    rows = [row for row in range(len(events)) if events.kind[row] == kind and events.thread[row] == thread]
    return [(trace.names[events.name[row]], (int(events.begin_ns[row]), int(events.end_ns[row]))) for row in rows]


def test_recorded_exposed_time_is_what_a_plain_loop_finds() -> None:
    observed = recorded("gloo_fsdp_rank0.json.gz")
    trace, events = observed.trace, observed.trace.events
    operators = pieces_between_hooks(trace, observed.steps.thread)
    total = 0
    for step in ("ProfilerStep#2", "ProfilerStep#3"):
        (row,) = rows_named(trace, Kind.ANNOTATION, step).tolist()
        for span in rows_named(trace, Kind.ANNOTATION, "gloo:").tolist():
            begin, end = int(events.begin_ns[span]), int(events.end_ns[span])
            if events.begin_ns[row] <= begin < events.end_ns[row]:
                total += end - begin - covered_ns((begin, end), operators)
    assert sum(unit.exposed_ns for unit in units_of(observed)) == total / 2


REPLICA_A, REPLICA_B = 11, 12


def cost_of(observed: Observed) -> DataParallelCost | None:
    return data_parallel_cost(observed.trace, observed.steps, observed.devices)


def step(kineto: Kineto, at: float, *, threads: tuple[int, int] = (REPLICA_A, REPLICA_B)) -> None:
    """Write a step of two replicas."""
    kineto.span("DataParallel.forward", at, at + 300)
    kineto.op("Scatter", at + 10, at + 30)
    kineto.kernel("Memcpy PtoP", at + 15, at + 35, called=at + 12, device=1)
    kineto.op("Broadcast", at + 40, at + 70)
    for device in (0, 1):
        kineto.kernel("ncclDevKernel_Broadcast_RING_LL", at + 60, at + 110, called=at + 50 + device, device=device)
    for device, thread in enumerate(threads):
        kineto.kernel("gemm", at + 120, at + 200 + 10 * device, called=at + 100 + device, thread=thread, device=device)
    kineto.op("Gather", at + 220, at + 250)
    kineto.kernel("Memcpy PtoP", at + 230, at + 255, called=at + 225, device=0)
    kineto.kernel("nll_loss", at + 310, at + 320, called=at + 305, device=0)
    kineto.op("GatherBackward", at + 400, at + 430, thread=AUTOGRAD)
    kineto.op("Scatter", at + 405, at + 425, thread=AUTOGRAD)
    kineto.kernel("Memcpy PtoP", at + 410, at + 415, called=at + 406, thread=AUTOGRAD, device=1)
    for device in (0, 1):
        kineto.kernel("gemm", at + 440, at + 600, called=at + 435 + device, thread=AUTOGRAD, device=device)
    kineto.op("BroadcastBackward", at + 610, at + 690, thread=AUTOGRAD)
    kineto.op("ReduceAddCoalesced", at + 620, at + 680, thread=AUTOGRAD)
    for device in (0, 1):
        kineto.kernel(
            "ncclDevKernel_Reduce_Sum", at + 630, at + 700, called=at + 625 + device, thread=AUTOGRAD, device=device
        )
    kineto.kernel("sgd", at + 800, at + 850, called=at + 795, device=0)


def test_every_part_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000, 3000, 4000)
    for at in (0, 1000, 2000, 3000):
        step(kineto, at)
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert cost.scatter_ns == (20 + 20) * US  # of the inputs, and of the gradients of the outputs
    assert cost.replicate_ns == (100 - 40) * US  # until a replica's thread launches
    assert cost.parallel_apply_ns == (220 - 100) * US
    assert cost.gather_ns == 30 * US
    assert cost.reduce_ns == 60 * US
    first, second = cost.device_ns[0], cost.device_ns[1]
    assert first == {
        "scatter": 0,
        "replicate": 50 * US,
        "parallel_apply": 80 * US,
        "gather": 25 * US,
        "reduce": 70 * US,
        "other": (10 + 160 + 50) * US,  # loss, backward, update
        "busy": (50 + 80 + 25 + 70 + 220) * US,
    }
    assert second == {
        "scatter": 25 * US,
        "replicate": 50 * US,
        "parallel_apply": 90 * US,
        "gather": 0,
        "reduce": 70 * US,
        "other": 160 * US,
        "busy": (25 + 50 + 90 + 70 + 160) * US,
    }
    assert first["busy"] - second["busy"] == 50 * US


def test_replicas_whose_launches_are_not_seen_run_from_the_end_of_the_broadcast(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    step(kineto, 0, threads=(MAIN, MAIN))
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert (cost.replicate_ns, cost.parallel_apply_ns) == (30 * US, 150 * US)


def test_one_device_needs_no_replicas(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.span("DataParallel.forward", 100, 300)
    kineto.op("Scatter", 110, 130)
    kineto.kernel("gemm", 150, 280, called=140)
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert (cost.scatter_ns, cost.replicate_ns, cost.parallel_apply_ns, cost.gather_ns) == (20 * US, 0, 170 * US, 0)
    assert cost.device_ns[0]["parallel_apply"] == cost.device_ns[0]["busy"] == 130 * US


def test_several_forwards_in_a_step_add_up(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 2000)
    step(kineto, 0)
    step(kineto, 1000)
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert (cost.scatter_ns, cost.replicate_ns, cost.parallel_apply_ns) == (80 * US, 120 * US, 240 * US)


def test_other_scatters_and_gathers_are_not_taken_for_these(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.op("aten::scatter", 10, 20)
    kineto.op("aten::gather", 30, 40)
    kineto.span(FORWARD, 0, 100)
    kineto.kernel("gemm", 50, 80, called=40)
    assert cost_of(kineto.observe(tmp_path)) is None


@needs_real_traces
def test_ddp_is_not_taken_for_data_parallel() -> None:
    assert cost_of(real("a100x2_ddp_rank0_collective_args.json.gz")) is None


def test_two_replicas_on_a_real_gpu() -> None:
    seen = recorded("h100_dp_two_replicas.json.gz")
    cost = cost_of(seen)
    assert cost is not None
    host = (cost.replicate_ns, cost.parallel_apply_ns, cost.reduce_ns, cost.scatter_ns, cost.gather_ns)
    assert [round(ns / 1e6, 1) for ns in host] == [5.6, 5.9, 2.2, 0.4, 0.3]
    (gpu,) = cost.device_ns.values()
    assert gpu["busy"] == pytest.approx(sum(ns for part, ns in gpu.items() if part != "busy"), rel=0.01)
    assert digest(seen.trace).unknown_communication is None  # one process, though it flattens gradients
