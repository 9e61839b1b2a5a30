"""When a trace does not tell what its rank communicates, and what it says then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpdoctor.attribution.digesting import digest
from dpdoctor.digest import Digest
from tests.builders.kineto import AUTOGRAD, GLOO_A, Kineto

MS = 1_000_000
PRIVATE = "void xyz::ep::main<float>(int)"
OTHER = "void xyz::layout(int)"


def header(world_size: int | None, rank: int = 0) -> dict[str, Any]:
    return {} if world_size is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}


def of(made: Kineto, folder: Path, comm_kernels: str | None = None) -> Digest:
    return digest(made.observe(folder).trace, comm_kernels)


def training(world_size: int | None = 64, name: str = PRIVATE) -> Kineto:
    """Return five steps of 10 ms: 6 ms of products, then 3 ms on a stream of their own, half a millisecond apart."""
    made = Kineto(**header(world_size))
    made.steps(*range(0, 60_000, 10_000))
    for begin in range(0, 50_000, 10_000):
        made.op("aten::mm", begin + 10, begin + 20)
        made.kernel("cutlass::Kernel<gemm>", begin + 100, begin + 6_100, called=begin + 12)
        made.kernel(name, begin + 6_600, begin + 9_600, called=begin + 30, stream=27)
    return made


class TestUnknown:
    def test_one_of_several_ranks_in_which_no_kernel_is_known_to_communicate(self, tmp_path: Path) -> None:
        found = of(training(), tmp_path)
        assert found.unknown_communication is not None
        assert "one of 64 ranks" in found.unknown_communication
        assert "xyz::ep::main<float> (15.0 ms)" in found.unknown_communication
        assert "cutlass" not in found.unknown_communication  # torch launched it
        assert "--comm-kernels" in found.unknown_communication
        (device,) = found.devices
        for budget in (device.whole, *(step.breakdown for step in device.steps)):
            assert budget.exposed_comm_ns is budget.comm_ns is None
        assert {step.breakdown.compute_ns for step in device.steps} == {9 * MS}
        assert found.collectives == found.calls.begin_ns == ()

    def test_named_it_is_known(self, tmp_path: Path) -> None:
        found = of(training(), tmp_path, "XYZ::ep")
        assert found.unknown_communication is None
        assert {step.breakdown.exposed_comm_ns for step in found.devices[0].steps} == {3 * MS}

    def test_an_expression_that_matches_nothing_is_said(self, tmp_path: Path) -> None:
        assert "--comm-kernels 'zyx' matches none" in str(of(training(), tmp_path, "zyx").unknown_communication)

    @pytest.mark.parametrize("world_size", [1, None])
    def test_a_rank_without_others_communicates_nothing(self, world_size: int | None, tmp_path: Path) -> None:
        found = of(training(world_size), tmp_path)
        assert found.unknown_communication is None
        assert found.devices[0].whole.exposed_comm_ns == 0

    @pytest.mark.parametrize("sign", ["c10d::allreduce_", "torch::distributed::reducer::mul_out", "FSDP::all_gather"])
    def test_without_a_header_the_host_tells_that_there_are_others(self, sign: str, tmp_path: Path) -> None:
        made = training(None)
        made.op(sign, 50_000, 50_010)
        assert "one of several ranks" in str(of(made, tmp_path).unknown_communication)

    @pytest.mark.parametrize(("is_dp", "is_alone"), [(True, True), (False, False)])
    def test_what_adds_up_gradients_in_one_process_is_no_sign_of_others(
        self, is_dp: bool, is_alone: bool, tmp_path: Path
    ) -> None:
        made = training(None)
        made.span("DataParallel.forward" if is_dp else "forward", 0, 5_000)
        made.op("aten::flatten_dense_tensors", 7_000, 7_010, thread=AUTOGRAD)
        assert (of(made, tmp_path).unknown_communication is None) is is_alone

    def test_a_backend_of_the_host_shows_nothing_on_the_device(self, tmp_path: Path) -> None:
        made = training()
        made.span("gloo:all_reduce", 10, 20, thread=GLOO_A)
        assert "communicates on the host" in str(of(made, tmp_path).unknown_communication)

    def test_a_host_without_devices_whose_backend_is_not_known(self, tmp_path: Path) -> None:
        made = Kineto(**header(300, 34))
        made.op("aten::mm", 0, 10)
        made.span("xyz:all_reduce", 10, 20, thread=GLOO_A)
        found = of(made, tmp_path)
        assert "gloo, mpi, ucc" in str(found.unknown_communication)
        assert found.devices[0].whole.exposed_comm_ns is None

    def test_kernels_launched_before_the_recording_on_a_stream_that_only_launches_tell_of(self, tmp_path: Path) -> None:
        made = training(name="gemm")
        for number in range(3):
            made.span("nccl:all_reduce", 100 * number, 100 * number + 50, thread=AUTOGRAD)
            made.kernel(
                f"ring_{number}", 51_000 + 10 * number, 51_009 + 10 * number, called=100 * number + 5, stream=31,
                thread=AUTOGRAD,
            )  # fmt: skip
        assert of(made, tmp_path).unknown_communication is None
        made.lost_kernel("ring_7", 50_500, 50_900, stream=31)
        found = of(made, tmp_path)
        assert "1 kernel of unknown name" in str(found.unknown_communication)
        assert found.devices[0].whole.exposed_comm_ns is None
        assert of(made, tmp_path, "^ring_").unknown_communication is None


class TestStreams:
    def test_that_it_runs_only_beside_others_is_a_hint_for_the_reason(self, tmp_path: Path) -> None:
        made = training(name="cutlass::Other<gemm>")
        for begin in range(0, 50_000, 10_000):
            made.kernel(OTHER, begin + 1_000, begin + 2_000, called=begin + 40, stream=33)
        reason = str(of(made, tmp_path).unknown_communication)
        assert "xyz::layout (5.00 ms) on a stream that runs only beside others" in reason
        assert "cutlass::Other<gemm> (15.0 ms)," in reason

    def test_compute_on_a_side_stream_is_compute(self, tmp_path: Path) -> None:
        made = training(name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        for begin in range(0, 50_000, 10_000):
            made.kernel(OTHER, begin + 1_000, begin + 6_300, called=begin + 40, stream=33)
        found = of(made, tmp_path)
        assert found.unknown_communication is None
        assert {step.breakdown.compute_ns for step in found.devices[0].steps} == {6 * MS + MS // 5}
        assert {step.breakdown.exposed_comm_ns for step in found.devices[0].steps} == {3 * MS}
