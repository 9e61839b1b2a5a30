from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdoctor.attribution.bandwidth import collective_sizes
from dpdoctor.digest import HOST
from dpdoctor.trace.model import UNKNOWN, Kind
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import (
    GLOO_A,
    MAIN,
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
