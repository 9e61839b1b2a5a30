from __future__ import annotations

import pytest

from dpdoctor.attribution.collective_names import UNKNOWN_OPERATION, bus_factor, operation


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
