from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.attribution.operations import UNKNOWN_OPERATION, bus_factor, may_be, operation, ranks_of, whole_bytes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", "reduce_scatter"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", UNKNOWN_OPERATION),
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgs)", UNKNOWN_OPERATION),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>", "all_reduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("nccl:coalesced", UNKNOWN_OPERATION),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("_c10d_functional::all_gather_into_tensor", "all_gather"),
        ("allreduce", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("gather", "gather"),
        ("wait", UNKNOWN_OPERATION),
        ("", UNKNOWN_OPERATION),
    ],
)
def test_every_name_has_one_form(name: str, expected: str) -> None:
    assert operation(name) == expected


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == bus_factor("all_to_all", 8) == 7 / 8
    assert bus_factor("broadcast", 8) == bus_factor("reduce", 8) == bus_factor("send", -1) == 1


def test_without_ranks_or_definition_there_is_no_factor() -> None:
    assert bus_factor("all_reduce", -1) is None
    assert bus_factor("barrier", 8) is None
    assert bus_factor(UNKNOWN_OPERATION, 8) is None


def test_a_group_of_one_uses_no_bus() -> None:
    assert bus_factor("all_reduce", 1) == 0


parts, ranks = st.integers(1, 1 << 40), st.integers(1, 4096)


@given(part=parts, n=ranks)
def test_operator_and_annotation_together_tell_the_ranks(part: int, n: int) -> None:
    both = n * part + part
    assert ranks_of("all_gather", part, both) == n
    assert ranks_of("reduce_scatter", n * part, both) == n
    assert whole_bytes("all_gather", part, None, n) == whole_bytes("reduce_scatter", n * part, None, n) == n * part


@pytest.mark.parametrize(
    ("operation", "input_bytes", "operator_bytes"),
    [
        ("all_gather", 100, 350),  # parts are alike: 250 is no multiple
        ("all_gather", 100, 100),
        ("all_gather", 0, 100),
        ("all_gather", None, 300),
        ("reduce_scatter", 100, None),
        ("reduce_scatter", 100, 90),
        ("all_reduce", 100, 100),
    ],
)
def test_what_does_not_agree_tells_nothing(operation: str, input_bytes: int | None, operator_bytes: int | None) -> None:
    assert ranks_of(operation, input_bytes, operator_bytes) is None


def test_a_reduce_scatter_is_told_from_an_all_reduce_by_its_sizes() -> None:
    assert may_be("reduce_scatter", 200, 300)
    assert not may_be("reduce_scatter", 200, 200)
    assert may_be("all_reduce", 200, 200)
    assert not may_be("all_reduce", 200, 100)
    assert may_be("all_reduce", 200, None)


@pytest.mark.parametrize(
    ("operation", "sizes", "expected"),
    [
        ("all_reduce", (40, 40, 2), 40),
        ("all_gather", (10, 80, None), 80),
        ("all_gather", (10, None, 8), 80),
        ("all_gather", (10, None, None), None),
        ("reduce_scatter", (80, 10, 8), 80),
        ("gather", (10, 0, 8), 80),
        ("recv", (0, 64, None), 64),
        ("scatter", (10, 80, 8), None),
        ("barrier", (0, 0, 2), None),
    ],
)
def test_whole_bytes_are_those_of_nccl_tests(
    operation: str, sizes: tuple[int | None, int | None, int | None], expected: int | None
) -> None:
    assert whole_bytes(operation, *sizes) == expected
