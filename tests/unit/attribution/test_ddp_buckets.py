from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from dpdoctor.attribution.ddp_buckets import MAX_BUCKETS, buckets
from dpdoctor.digest import Bucket
from dpdoctor.trace.model import Kind
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
    kineto.span("DistributedDataParallel.forward", at - 50, at - 10)
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
        kineto.span("DistributedDataParallel.forward", at, at + 1)
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


def test_a_bucket_for_each_of_many_parameters(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 100_000)
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
@pytest.mark.parametrize(("name", "num"), [("a100x16_sendrecv_rank0.json.gz", 2), ("a100x8_rank3.json.gz", 3)])
def test_buckets_of_other_real_traces(name: str, num: int) -> None:
    found = buckets_of(real(name))
    assert [bucket.order for bucket in found] == list(range(num))
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
