"""What is done for communication besides it, on a host without a device."""

from __future__ import annotations

import pytest

from dpdoctor.attribution.comm_host_overhead import handling
from dpdoctor.attribution.device_events import device_events
from tests.builders.traces import AUTOGRAD, MAIN, US, Recording


def handled(recording: Recording) -> list[list[float]]:
    """Return from when to when, in microseconds."""
    trace = recording.trace()
    (device,) = device_events(trace, MAIN)
    return (handling(trace, device, MAIN) / US).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "aten::flatten_dense_tensors",
        "torch::distributed::reducer::mul_out",
        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
    ],
)
def test_operators_that_copy_for_it(name: str) -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.op(name, 20, 30, thread=AUTOGRAD)
    recording.op("aten::cat", 40, 50)
    assert handled(recording) == [[20, 30]]


def test_what_the_hooks_of_fully_shard_do_besides_copying() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.span("FSDP::all_gather (blocks.1)", 20, 40)
    recording.op("fsdp::all_gather_copy_in", 22, 25)
    recording.op("c10d::_allgather_base_", 30, 32)
    recording.span("FSDP::pre_forward (blocks.1)", 15, 45)
    assert handled(recording) == [[15, 22], [25, 45]]


def test_on_a_gpu_kernels_do_that() -> None:
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.op("aten::flatten_dense_tensors", 20, 30)
    assert handled(recording) == []
