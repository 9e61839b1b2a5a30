"""What ran on a device and what launched it; which of its kernels communicate."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.attribution.device_events import BEFORE_RECORDING, NEVER_SEEN, Part, communicating, device_events, parts
from dpdoctor.trace.model import UNKNOWN, Kind, Trace
from tests.builders import kineto
from tests.builders.documents import complete, document, kernel, read_bytes
from tests.builders.kineto import Kineto
from tests.builders.traces import AUTOGRAD, GLOO, MAIN, US, Recording


def test_what_ran_is_joined_with_the_call_that_launched_it() -> None:
    recording = Recording()
    recording.launched(10, 40, 50, thread=AUTOGRAD)
    recording.launched(5, 20, 30, device=1)
    recording.launched(7, 30, 40)
    first, second = device_events(recording.trace(), MAIN)
    assert (first.index, second.index) == (0, 1)
    assert (first.events.begin_ns // US).tolist() == [30, 40]  # sorted
    assert (first.call_begin_ns // US).tolist() == [7, 10]
    assert (first.call_end_ns // US).tolist() == [9, 12]
    assert first.call_thread.tolist() == [MAIN, AUTOGRAD]


def test_what_was_launched_before_the_recording_is_told_from_what_is_lost() -> None:
    recording = Recording()
    recording.kernel(0, 1, correlation=7)  # lower than the first of the recorded calls
    recording.launched(5, 8, 10)
    recording.kernel(12, 13, correlation=5000)
    recording.kernel(14, 15)
    (device,) = device_events(recording.trace(), MAIN)
    assert device.call_begin_ns.tolist() == [BEFORE_RECORDING, 5 * US, NEVER_SEEN, NEVER_SEEN]
    assert device.call_thread.tolist() == [UNKNOWN, MAIN, UNKNOWN, UNKNOWN]


def test_without_any_call_nothing_is_known_of_launches() -> None:
    recording = Recording()
    recording.kernel(0, 1, correlation=7)
    assert device_events(recording.trace(), MAIN)[0].call_begin_ns.tolist() == [NEVER_SEEN]


def test_a_kernel_without_a_device_is_on_none() -> None:
    recording = Recording()
    recording.kernel(0, 1, device=UNKNOWN)
    recording.kernel(0, 1, device=3)
    assert [device.index for device in device_events(recording.trace(), MAIN)] == [3]


def test_on_the_host_a_collective_belongs_to_the_operator_that_queued_it() -> None:
    recording = Recording()
    recording.op("c10d::allreduce_", 10, 12)
    recording.op("c10d::allreduce_", 20, 22)
    recording.span("gloo:all_reduce", 15, 40, thread=GLOO)
    recording.span("gloo:all_reduce", 40, 60, thread=GLOO)
    (host,) = device_events(recording.trace(), MAIN)
    assert (host.call_begin_ns // US).tolist() == [10, 10, 20, 20]
    assert host.call_thread.tolist() == [MAIN] * 4


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


PRIVATE = "void xyz::ep::main<float>(int)"


def which(trace: Trace, pattern: str | None = None) -> list[bool]:
    """Return for each kernel, in the order of the file, whether it communicates."""
    return communicating(trace, pattern)[trace.rows(Kind.KERNEL)].tolist()


@pytest.mark.parametrize(
    ("name", "is_comm"),
    [
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", True),
        ("_ZN7deep_ep9internode7combineILb0EEEvPi", True),
        ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int)", True),
        ("_ZN4dpsk2ep9internode8dispatchEv", True),
        # What DeepEP wraps CUB in.
        ("void cdpsk::ep::CUB_200400_900::DeviceScanKernel<int>(int*)", False),
        ("void dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel<float>()", False),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int, float*, float const*, unsigned long)", True),
        ("nvshmemi_proxy_quiet", True),
        ("void transformer_engine::userbuffers_fp16_sum_inplace_gpu_rr<8>(int)", True),
        ("void warpAllReduceSoftmax<float>(float*)", False),
    ],
)
def test_by_name(name: str, *, is_comm: bool, tmp_path: Path) -> None:
    assert which(read_bytes(tmp_path, document(kernel(name)))) == [is_comm]


def test_what_the_expression_matches_communicates_too_whatever_the_case(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, document(kernel(PRIVATE), kernel("gemm"), kernel("ncclDevKernel_AllReduce")))
    assert which(trace) == [False, False, True]
    assert which(trace, "XYZ::ep") == [True, False, True]
    assert which(trace, "gemm$") == [False, True, True]


@pytest.mark.parametrize("call", ["record_param_comms", "nccl:all_reduce", "c10d::allreduce_"])
def test_what_the_host_call_of_a_collective_launches_communicates(call: str, tmp_path: Path) -> None:
    made = Kineto()
    made.op("aten::mm", 0, 5)
    made.kernel("gemm", 10, 20, called=1)
    (made.span if ":" in call else made.op)(call, 30, 40, thread=kineto.AUTOGRAD)
    made.kernel(PRIVATE, 50, 60, called=32, thread=kineto.AUTOGRAD)
    made.kernel("beside", 70, 80, called=35)  # at the same time on another thread
    made.kernel("after", 90, 95, called=41, thread=kineto.AUTOGRAD)
    assert which(made.observe(tmp_path).trace) == [False, True, False, False]


def test_what_an_operator_within_that_call_launches_does_not(tmp_path: Path) -> None:
    made = Kineto()
    made.span("DistributedDataParallel.forward", 0, 100)
    made.op("c10d::allgather_", 0, 50)  # begins, by microseconds, with what is around it
    made.op("aten::copy_", 5, 10)
    made.kernel("copies", 60, 61, called=6)
    made.kernel(PRIVATE, 62, 63, called=20)
    assert which(made.observe(tmp_path).trace) == [False, True]


def test_kernels_of_the_same_name_do_unless_something_else_launches_one(tmp_path: Path) -> None:
    made = Kineto()
    made.span("nccl:all_reduce", 0, 10)
    made.kernel(PRIVATE, 20, 30, called=1)
    made.kernel("shared", 31, 32, called=5)
    made.lost_kernel(PRIVATE, 40, 50)
    made.lost_kernel("shared", 51, 52)
    made.kernel("shared", 60, 61, called=55)
    assert which(made.observe(tmp_path).trace) == [True, True, True, False, False]


def test_without_its_launch_a_kernel_is_told_by_the_id_of_the_record(tmp_path: Path) -> None:
    record = complete("record_param_comms", 1, 5, args={"External id": 77})
    by_id, other = (kernel(name, 10, 1, **{"External id": number}) for name, number in ((PRIVATE, 77), ("other", 78)))
    assert which(read_bytes(tmp_path, document(record, by_id, other))) == [True, False]
