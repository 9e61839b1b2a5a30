from __future__ import annotations

import pytest

from dpdoctor.attribution.parts import Part, parts
from dpdoctor.trace.columns import UNKNOWN, Kind
from tests.builders.traces import Recording


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (Kind.KERNEL, "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>", Part.COMPUTE),
        (Kind.MEMSET, "Memset (Device)", Part.COMPUTE),
        (Kind.KERNEL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Part.COMM),
        (Kind.KERNEL, "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", Part.COMM),
        (Kind.KERNEL, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Part.COMM),
        (Kind.KERNEL, "void rcclGenericKernel<false>()", Part.COMM),
        (Kind.KERNEL, "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)", Part.COMM),
        (Kind.KERNEL, "nvshmemi_transfer_rma_p", Part.COMM),
        (Kind.KERNEL, "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 8, 8>()", Part.COMM),
        (Kind.KERNEL, "void cublas_symmetric::dsymm_kernel<double, 128>()", Part.COMPUTE),  # a product of matrices
        (Kind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", Part.H2D),
        (Kind.MEMCPY, "Memcpy HtoD (Host -> Device)", Part.H2D),
        (Kind.MEMCPY, "CopyHostToDevice", Part.H2D),
        (Kind.MEMCPY, "Memcpy DtoH (Device -> Pageable)", Part.COPY),
        (Kind.MEMCPY, "Memcpy DtoD (Device -> Device)", Part.COPY),
        (Kind.MEMCPY, "Memcpy PtoP (Device -> Device)", Part.COPY),
    ],
)
def test_what_a_device_does(kind: Kind, name: str, expected: Part) -> None:
    recording = Recording()
    recording.on_device(kind, name, 0, 1)
    assert parts(recording.trace()).tolist() == [expected]


def test_the_host_has_no_part() -> None:
    recording = Recording()
    recording.op("nccl:all_reduce", 0, 1)
    recording.call("cudaMemcpyAsync", 0, 1)
    assert parts(recording.trace()).tolist() == [UNKNOWN, UNKNOWN]


def test_a_kernel_that_is_described_as_a_collective_is_one() -> None:
    recording = Recording()
    recording.kernel(0, 1, "vendor_ring_reduce")
    recording.collective("allreduce")
    assert parts(recording.trace()).tolist() == [Part.COMM]
    recording.launched(1, 5, 6, "vendor_ring_reduce")  # by no collective
    assert parts(recording.trace()).tolist() == [Part.COMM, UNKNOWN, Part.COMPUTE]
