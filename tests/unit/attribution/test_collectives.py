"""Every communication event of a rank, its bandwidth by size, and the columns that ranks are compared by."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from dpdoctor.attribution.breakdown import activities, occupancy
from dpdoctor.attribution.collectives import (
    MAX_CALLS,
    MAX_RANKS,
    MAX_SIZES,
    call_columns,
    collective_sizes,
    group_ranks,
    local_causes,
    small_calls,
)
from dpdoctor.attribution.devices import idle_causes
from dpdoctor.attribution.steps import step_windows
from dpdoctor.digest import HOST, Calls
from dpdoctor.trace.model import UNKNOWN, Kind
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import (
    GLOO_A,
    MAIN,
    US,
    WITH_COLLECTIVES,
    Kineto,
    Observed,
    covered_ns,
    of_two_ranks,
    real,
    recorded,
    rows_named,
    shapes,
)

METADATA: dict[str, Any] = {
    "Collective name": "_allgather_base",
    "dtype": "BFloat16",
    "In msg nelems": 100,
    "Out msg nelems": 400,
    "Group size": 4,
    "Process Group Name": "7",
    "Process Group Ranks": "[0, 2, 4, 6]",
    "Seq": 12,
}


def only(observed: Observed) -> tuple[str, str, int, int, int]:
    """Return what is said of the only call: operation, group, ranks, bytes, sequence number."""
    found = observed.found
    numbers = (found.group_size, found.num_bytes, found.seq)
    return (*found.operations, *found.groups, *(int(column.item()) for column in numbers))


def test_metadata_on_the_kernel(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclDevKernel_Generic(args)", 10, 20, called=5, **METADATA)
    assert only(kineto.observe(tmp_path)) == ("all_gather", "7", 4, 800, 12)


def test_metadata_on_the_operator_around_the_launch(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.op("record_param_comms", 4, 8, **METADATA)
    kineto.kernel("ncclDevKernel_Generic(args)", 10, 20, called=5)
    assert only(kineto.observe(tmp_path)) == ("all_gather", "7", 4, 800, 12)


def test_metadata_on_the_operator_of_the_same_id_where_the_launch_is_lost(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.op("record_param_comms", 4, 8, **METADATA, **{"External id": 33})
    kineto.lost_kernel("ncclDevKernel_Generic(args)", 10, 20, **{"External id": 33, "correlation": 900})
    assert only(kineto.observe(tmp_path)) == ("all_gather", "7", 4, 800, 12)


def test_an_external_id_that_repeats_the_correlation_is_no_operators(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.op("record_param_comms", 4, 8, **METADATA, **{"External id": 33})
    kineto.lost_kernel("ncclDevKernel_Generic(args)", 10, 20, **{"External id": 33, "correlation": 33})
    assert only(kineto.observe(tmp_path)) == ("unknown", "", UNKNOWN, UNKNOWN, UNKNOWN)


def test_the_annotation_is_believed_more_than_the_kernels_name(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.span("nccl:all_reduce", 4, 8, **shapes(1000))
    kineto.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 10, 20, called=5)
    assert only(kineto.observe(tmp_path)) == ("all_reduce", "", UNKNOWN, 4000, UNKNOWN)


def test_only_the_name_of_the_kernel(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 10, 20, called=5)
    observed = kineto.observe(tmp_path)
    assert only(observed) == ("all_reduce", "", UNKNOWN, UNKNOWN, UNKNOWN)
    assert observed.trace.events.kind[observed.found.caller].tolist() == [Kind.RUNTIME]


def test_shapes_of_operator_and_annotation_tell_the_ranks_of_the_group(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks("nccl"))  # but this call is of another group
    kineto.op("c10d::_allgather_base_", 3, 9, **shapes(800, 100))
    kineto.span("nccl:_all_gather_base", 4, 8, **shapes(100))
    kineto.kernel("ncclKernel_AllGather_RING_LL", 10, 20, called=5)
    assert only(kineto.observe(tmp_path)) == ("all_gather", "", 8, 3200, UNKNOWN)


def test_groups_of_different_sizes_leave_the_ranks_unknown(tmp_path: Path) -> None:
    header = of_two_ranks()
    header["distributedInfo"]["pg_config"].append({"pg_name": "1", "ranks": [0, 1, 2, 3]})
    kineto = Kineto(**header)
    kineto.span("gloo:all_gather", 4, 8, thread=GLOO_A, **shapes(100))
    kineto.op("aten::add", 0, 1)
    assert only(kineto.observe(tmp_path)) == ("all_gather", "", UNKNOWN, UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("header", "call", "known"),
    [
        ([], "[2, 0, 4, 6]", {"7": (0, 2, 4, 6)}),
        ([{"pg_name": "7", "ranks": [0, 9]}], "[0, 2, 4, 6]", {"7": (0, 9)}),
        ([{"pg_name": "7", "ranks": []}, {"pg_name": "8", "ranks": [0, 9]}], "[0, ..., 6]", {}),
        ([{"pg_name": "7", "ranks": [*range(MAX_RANKS + 1)]}], "[]", {}),
    ],
)
def test_the_ranks_of_a_group_that_has_calls(
    tmp_path: Path, header: list[dict[str, Any]], call: str, known: dict[str, tuple[int, ...]]
) -> None:
    made = Kineto(distributedInfo={"rank": 0, "pg_config": header})
    made.kernel("ncclDevKernel_AllGather", 10, 20, called=1, **{**METADATA, "Process Group Ranks": call})
    observed = made.observe(tmp_path)
    assert group_ranks(observed.trace, observed.found) == known


def test_exposed_is_what_no_compute_of_the_same_device_covers(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclDevKernel_AllReduce", 10, 40, called=1, device=0)
    kineto.kernel("gemm", 0, 15, called=2, device=0)
    kineto.kernel("gemm", 12, 20, called=3, device=0)
    kineto.kernel("gemm", 35, 50, called=4, device=0)
    kineto.kernel("gemm", 20, 35, called=5, device=1)
    found = kineto.observe(tmp_path).found
    assert found.exposed_ns.tolist() == [15_000]
    assert found.device.tolist() == [0]


def test_on_a_host_the_training_threads_operators_cover(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.op("aten::mm", 0, 15)
    kineto.op("aten::mm", 20, 25, thread=GLOO_A)
    kineto.span("loss", 20, 30, thread=MAIN)
    kineto.span("gloo:all_reduce", 10, 40, thread=GLOO_A, **shapes(100))
    found = kineto.observe(tmp_path).found
    assert found.exposed_ns.tolist() == [25_000]
    assert found.device.tolist() == [HOST]


@pytest.mark.parametrize("nelems", [-4, 1 << 61, 1 << 80])
def test_impossible_sizes_are_unknown(tmp_path: Path, nelems: int) -> None:
    kineto = Kineto()
    metadata = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": nelems, "Group size": nelems}
    kineto.kernel("ncclDevKernel_AllReduce", 10, 20, called=5, **metadata)
    found = kineto.observe(tmp_path).found
    assert found.num_bytes.tolist() == [UNKNOWN]
    assert collective_sizes(found)[0].num_bytes is None


def test_a_trace_without_communication_has_no_calls(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.op("aten::mm", 0, 15)
    assert len(kineto.observe(tmp_path).found) == 0


@needs_real_traces
@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_exposed_time_of_real_calls_is_what_a_plain_loop_finds(name: str) -> None:
    observed = real(name)
    trace, found = observed.trace, observed.found
    rows = [
        row
        for row, (kind, name) in enumerate(zip(trace.events.kind.tolist(), trace.events.name.tolist(), strict=True))
        if kind in {Kind.KERNEL, Kind.MEMSET} and "nccl" not in trace.names[name]
    ]
    compute = trace.events[np.array(rows)]
    some = range(0, len(found), max(1, len(found) // 40))
    for index in some:
        span = (int(found.begin_ns[index]), int(found.end_ns[index]))
        assert found.exposed_ns[index] == span[1] - span[0] - covered_ns(span, compute.spans)


@needs_real_traces
def test_calls_of_a_real_trace_with_metadata() -> None:
    found = real("a100x2_ddp_rank0_collective_args.json.gz").found
    kinds = Counter(zip(found.operations, found.groups, found.num_bytes.tolist(), strict=True))
    broadcasts = {("broadcast", "0", 424): 3, ("broadcast", "0", 212_480): 3}
    sizes = (8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160)
    assert kinds == {**broadcasts, **{("all_reduce", "0", size): 3 for size in sizes}}
    assert set(found.group_size.tolist()) == {2}


@needs_real_traces
def test_calls_of_a_real_trace_whose_kernels_are_all_called_alike() -> None:
    observed = real("a100x16_sendrecv_rank0.json.gz")
    found = observed.found
    assert Counter(found.operations) == {
        "all_to_all": 45,
        "all_gather": 10,
        "reduce_scatter": 10,
        "all_reduce": 10,
        "send_recv": 5,  # their launches are not in the trace
    }
    of_parts = [index for index, name in enumerate(found.operations) if name in {"all_gather", "reduce_scatter"}]
    assert set(found.group_size[of_parts].tolist()) == {8}  # of a job of 16
    scattered = {b for name, b in zip(found.operations, found.num_bytes.tolist(), strict=True) if "scatter" in name}
    assert scattered == {100_663_296, 16_777_216}


@needs_real_traces
def test_calls_of_a_real_rccl_trace_are_told_by_their_launches() -> None:
    found = real("mi300_resnet_rccl.json.gz").found
    assert Counter(found.operations) == {"all_reduce": 6, "broadcast": 6, "unknown": 5}


@needs_real_traces
def test_calls_of_a_real_trace_without_arguments() -> None:
    observed = real("v100x2_ddp_rank1.json.gz")
    assert Counter(observed.found.operations) == {"all_reduce": 2020}
    operators = rows_named(observed.trace, Kind.CPU_OP, "c10d::allreduce_")
    assert sorted(observed.found.caller.tolist()) == operators.tolist()


@needs_real_traces
def test_a_real_gloo_trace_of_a_large_world() -> None:
    found = real("gloo_world300_rank34.json.gz").found
    assert Counter(zip(found.operations, found.num_bytes.tolist(), found.group_size.tolist(), strict=True)) == {
        ("all_reduce", 1_285_084, 300): 5,
        ("all_reduce", 8_329_644, 300): 5,
    }


def test_recorded_fsdp_gathers_and_scatters_the_model() -> None:
    found = recorded("gloo_fsdp_rank0.json.gz").found
    block, head = 9_446_400, 30_760  # bytes of the parameters
    assert Counter(zip(found.operations, found.num_bytes.tolist(), found.group_size.tolist(), strict=True)) == {
        ("all_gather", block, 2): 4 * 2 * 2,  # steps, blocks, forward and backward
        ("all_gather", head, 2): 4,
        ("reduce_scatter", block, 2): 4 * 2,
        ("reduce_scatter", head, 2): 4,
    }
    assert (found.caller != UNKNOWN).all()


def test_recorded_ddp_reduces_the_model_once_per_step() -> None:
    observed = recorded("gloo_ddp_rank0.json.gz")
    found = observed.found
    assert set(found.operations) == {"all_reduce"}
    assert found.num_bytes.sum() == 4 * (3 * 9_446_400 + 30_760)
    trace = observed.trace
    operators = trace.events[(trace.events.kind == Kind.CPU_OP) & (trace.events.thread == observed.steps.thread)]
    for index, span in enumerate(zip(found.begin_ns.tolist(), found.end_ns.tolist(), strict=True)):
        assert found.exposed_ns[index] == span[1] - span[0] - covered_ns(span, operators.spans)


def calls_of(observed: Observed) -> Calls:
    host = activities(observed.trace, observed.devices, observed.steps.thread)
    causes = {}
    for device in observed.devices:
        used = occupancy(device)
        idle = idle_causes(device, used, observed.steps, host)
        causes[device.index] = local_causes(device, used, idle, host, observed.steps.thread)
    windows = {device.index: step_windows(observed.steps, device) for device in observed.devices}
    return call_columns(observed.found, windows, causes)


def causes_of(found: Calls) -> list[str]:
    return [found.causes[index] for index in found.segment_cause]


def test_columns_are_those_of_the_trace(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 100, 200, 300)
    metadata = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 25, "Process Group Name": "0"}
    for begin, seq in ((10, 3), (110, 4), (210, 5)):
        kineto.kernel("gemm", begin - 5, begin + 2, called=begin - 8)
        kineto.kernel("ncclDevKernel_AllReduce", begin, begin + 10, called=begin - 4, **metadata, Seq=seq)
    found = calls_of(kineto.observe(tmp_path))
    assert [found.names[index] for index in found.operation] == ["all_reduce"] * 3
    assert [found.names[index] for index in found.group] == ["0"] * 3
    assert found.seq == (3, 4, 5)
    assert found.num_bytes == (100, 100, 100)
    assert found.begin_ns == (10 * US, 110 * US, 210 * US)
    assert found.end_ns == (20 * US, 120 * US, 220 * US)
    assert found.exposed_ns == (8 * US, 8 * US, 8 * US)
    assert found.step == (-1, 1, -1)  # the first and last step are not whole
    assert found.num_dropped == 0


def test_a_device_is_blamed_for_what_it_did_before_a_call(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 210, 290)
    kineto.kernel("ncclDevKernel_AllReduce", 0, 10, called=0)
    kineto.kernel("gemm", 10, 90, called=1)
    kineto.kernel("ncclDevKernel_AllReduce", 100, 110, called=2)  # after computing
    kineto.kernel("ncclDevKernel_AllReduce", 110, 200, called=3)  # at once
    kineto.kernel("ncclDevKernel_AllReduce", 300, 310, called=299)  # after the loader
    kineto.op("aten::add", 330, 390)
    kineto.kernel("ncclDevKernel_AllReduce", 400, 410, called=399)  # after operators that launch nothing
    kineto.kernel("ncclDevKernel_AllReduce", 500, 510, called=499)  # after nothing that is seen
    assert causes_of(calls_of(kineto.observe(tmp_path))) == ["none", "compute", "none", "data", "dispatch", "python"]


def test_a_host_is_blamed_for_what_its_training_thread_did(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.steps(0, 500)
    kineto.op("aten::mm", 0, 9)
    for begin in (10, 100, 200, 300):
        kineto.span("gloo:all_reduce", begin, begin + 10, thread=GLOO_A, **shapes(8))
    kineto.op("aten::mm", 20, 80)
    kineto.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 110, 190)
    kineto.op("aten::stack", 115, 185)  # of the loader
    kineto.op("aten::mm", 210, 230)  # and then asleep
    assert causes_of(calls_of(kineto.observe(tmp_path))) == ["none", "compute", "data", "python"]


def test_the_segment_begins_when_all_earlier_calls_are_done(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.op("aten::mm", 0, 100)
    kineto.span("gloo:all_reduce", 100, 300, thread=GLOO_A, **shapes(8))
    kineto.span("gloo:all_reduce", 110, 120, thread=GLOO_A, **shapes(8))
    kineto.op("aten::mm", 121, 290)  # beside the first call
    kineto.span("gloo:all_reduce", 350, 360, thread=GLOO_A, **shapes(8))
    assert causes_of(calls_of(kineto.observe(tmp_path))) == ["none", "none", "python"]


def test_calls_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    kineto = Kineto()
    for begin in range(MAX_CALLS + 7):
        kineto.kernel("ncclDevKernel_AllReduce", begin, begin + 0.5, called=begin)
    found = calls_of(kineto.observe(tmp_path))
    assert len(found.begin_ns) == len(found.segment_cause) == len(found.step) == MAX_CALLS
    assert found.num_dropped == 7
    assert found.begin_ns[-1] == (MAX_CALLS - 1) * US


def test_a_rank_that_never_communicates(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("gemm", 0, 10, called=0)
    found = calls_of(kineto.observe(tmp_path))
    assert (found.begin_ns, found.names, found.causes, found.num_dropped) == ((), (), (), 0)


def test_recorded_calls_of_whole_steps_are_alike() -> None:
    found = calls_of(recorded("gloo_fsdp_rank0.json.gz"))
    assert sorted(found.step) == [-1] * 16 + [2] * 8 + [3] * 8
    assert set(causes_of(found)) <= {"compute", "python", "optimizer", "data", "none"}


@needs_real_traces
@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_calls_of_real_traces_lie_in_their_steps(name: str) -> None:
    observed = real(name)
    found = calls_of(observed)
    (device,) = observed.devices
    windows = step_windows(observed.steps, device)
    spans = dict(zip(windows.numbers.tolist(), windows.spans.tolist(), strict=True))
    assert len(found.begin_ns) == len(observed.found)
    for begin, step in zip(found.begin_ns, found.step, strict=True):
        inside = [number for number, (first, last) in spans.items() if first <= begin < last]
        assert [step] == (inside or [-1])


def metadata(name: str, nelems: int, group_size: int = 8, group: str = "0") -> dict[str, Any]:
    return {
        "Collective name": name,
        "dtype": "Float",
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": group_size,
        "Process Group Name": group,
    }


def test_bandwidths_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    for begin, duration in ((0, 100), (1000, 300), (2000, 200)):
        kineto.kernel(
            "ncclDevKernel_AllReduce", begin, begin + duration, called=begin, **metadata("allreduce", 500_000)
        )
    kineto.kernel("gemm", 1100, 1150, called=1100)
    (size,) = collective_sizes(kineto.observe(tmp_path).found)
    assert (size.operation, size.group, size.group_size, size.num_bytes) == ("all_reduce", "0", 8, 2_000_000)
    assert (size.count, size.total_ns, size.exposed_ns) == (3, 600_000, 550_000)
    assert (size.median_ns, size.min_ns) == (200_000, 100_000)
    assert size.algbw_gb_s == pytest.approx(10.0)  # 2 MB in 200 µs
    assert size.busbw_gb_s == pytest.approx(10.0 * 2 * 7 / 8)


def test_each_operation_group_and_size_is_an_entry_and_the_longest_is_first(tmp_path: Path) -> None:
    kineto = Kineto()
    calls = [("allreduce", 8, "0"), ("allreduce", 16, "0"), ("broadcast", 8, "0"), ("allreduce", 8, "1")]
    for index, (name, nelems, group) in enumerate(calls):
        begin = 1000 * index
        kineto.kernel("ncclDevKernel", begin, begin + 10 + index, called=begin, **metadata(name, nelems, group=group))
    sizes = collective_sizes(kineto.observe(tmp_path).found)
    assert [(size.operation, size.num_bytes, size.group) for size in sizes] == [
        ("all_reduce", 32, "1"),
        ("broadcast", 32, "0"),
        ("all_reduce", 64, "0"),
        ("all_reduce", 32, "0"),
    ]


def test_without_size_there_is_no_bandwidth(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 0, 10, called=0)
    (size,) = collective_sizes(kineto.observe(tmp_path).found)
    assert (size.group_size, size.num_bytes, size.algbw_gb_s, size.busbw_gb_s) == (None, None, None, None)


def test_calls_of_no_duration_have_no_bandwidth(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclDevKernel", 0, 0, called=0, **metadata("allreduce", 8))
    assert collective_sizes(kineto.observe(tmp_path).found)[0].algbw_gb_s is None


def test_sizes_without_number_do_not_fill_the_digest(tmp_path: Path) -> None:
    kineto = Kineto()
    for nelems in range(1, MAX_SIZES + 101):
        begin = 1000 * nelems
        kineto.kernel("ncclDevKernel", begin, begin + nelems, called=begin, **metadata("all_to_allv", nelems))
    sizes = collective_sizes(kineto.observe(tmp_path).found)
    assert len(sizes) == MAX_SIZES + 1
    assert sum(size.count for size in sizes) == MAX_SIZES + 100
    (rest,) = (size for size in sizes if size.num_bytes is None)
    assert (rest.operation, rest.group, rest.group_size, rest.count) == ("all_to_all", "", None, 100)
    assert rest.total_ns == sum(range(1, 101)) * 1000  # the shortest ones


@needs_real_traces
@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_figures_of_real_traces_are_what_a_plain_loop_finds(name: str) -> None:
    observed = real(name)
    sizes = collective_sizes(observed.found)
    assert sum(size.count for size in sizes) == len(observed.found)
    for size in sizes:
        durations = _durations(observed, (size.operation, size.group, size.group_size or -1, size.num_bytes or -1))
        assert (size.count, size.total_ns, size.min_ns) == (len(durations), sum(durations), min(durations))
        assert size.median_ns == int(median(durations))
        if size.algbw_gb_s is not None and size.num_bytes is not None:
            assert size.algbw_gb_s == pytest.approx(size.num_bytes / 1e9 / (size.median_ns / 1e9))


def _durations(observed: Observed, key: tuple[str, str, int, int]) -> list[int]:
    found = observed.found
    columns = (found.operations, found.groups, found.group_size.tolist(), found.num_bytes.tolist())
    keys = zip(*columns, strict=True)
    times = zip(found.begin_ns.tolist(), found.end_ns.tolist(), strict=True)
    return [end - begin for this, (begin, end) in zip(keys, times, strict=True) if this == key]


LATENCY_US = 40
BYTES_PER_US = 100_000  # 100 GB/s
SIZES = (4_000, 400_000, 1_200_000, 40_000_000, 400_000_000)


def written(sizes: tuple[int, ...], calls: int = 3, waits_us: tuple[float, ...] = (0, 500, 70)) -> Kineto:
    """Return calls that take the latency and the transfer and, most of them, a wait."""
    kineto, begin = Kineto(), 0.0
    for size in sizes:
        for number in range(calls):
            metadata: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Byte", "In msg nelems": size}
            duration = LATENCY_US + size / BYTES_PER_US + waits_us[number % len(waits_us)]
            kineto.kernel("ncclDevKernel_AllReduce", begin, begin + duration, called=begin, **metadata)
            begin += duration + 10
    return kineto


def test_latency_and_bandwidth_come_back(tmp_path: Path) -> None:
    (found,) = small_calls(written(SIZES).observe(tmp_path).found)
    assert found.operation == "all_reduce"
    assert found.latency_ns == pytest.approx(LATENCY_US * 1000, rel=0.001)
    assert found.bandwidth_gb_s == pytest.approx(100, rel=0.001)
    assert found.limit_bytes == pytest.approx(LATENCY_US * BYTES_PER_US / 4, rel=0.001)  # 1 MB
    assert (found.count, found.small_count) == (15, 6)
    small_us = sum(3 * (LATENCY_US + size / BYTES_PER_US) + 570 for size in SIZES[:2])
    assert found.small_total_ns == found.small_exposed_ns == pytest.approx(small_us * 1000)


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        (SIZES[:2], 3),  # too few sizes
        ((1_000_000, 1_100_000, 1_200_000), 3),  # too much alike
        (SIZES, 2),  # any of them may have waited
    ],
)
def test_too_little_is_not_judged(tmp_path: Path, sizes: tuple[int, ...], calls: int) -> None:
    assert small_calls(written(sizes, calls).observe(tmp_path).found) == ()


@pytest.mark.parametrize("duration_us", [(50, 50, 40), (10, 500, 20)])
def test_times_that_do_not_follow_the_size_are_not_judged(tmp_path: Path, duration_us: tuple[int, ...]) -> None:
    kineto = Kineto()
    for number in range(9):
        metadata = {"Collective name": "allreduce", "dtype": "Byte", "In msg nelems": SIZES[1 + number // 3]}
        begin = 1000 * number
        kineto.kernel("ncclDevKernel", begin, begin + duration_us[number // 3], called=begin, **metadata)
    assert small_calls(kineto.observe(tmp_path).found) == ()


def test_calls_of_unknown_size_are_not_judged(tmp_path: Path) -> None:
    kineto = Kineto()
    for begin in range(20):
        kineto.kernel("ncclKernel_AllReduce_RING_LL", 10 * begin, 10 * begin + 5, called=10 * begin)
    assert small_calls(kineto.observe(tmp_path).found) == ()


@needs_real_traces
def test_real_calls_of_one_or_two_per_size_are_not_judged() -> None:
    assert small_calls(real("two_ranks_of_128/rank-0.json.gz").found) == ()
