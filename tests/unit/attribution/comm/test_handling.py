"""What is done for communication besides it, on a host without a device."""

from __future__ import annotations

import pytest

from dpdoctor.attribution.comm.handling import handling
from dpdoctor.attribution.device_events import device_events
from tests.unit.attribution.traces import AUTOGRAD, MAIN, US, Recording


def handled(recording: Recording) -> list[list[float]]:
    """Return from when to when, in microseconds."""
    trace = recording.trace()
    (device,) = device_events(trace, MAIN)
    return (handling(trace, device) / US).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "aten::flatten_dense_tensors",
        "torch::distributed::reducer::mul_out",
        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
        "fsdp::all_gather_copy_in",
    ],
)
def test_operators_that_copy_for_it(name: str) -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.op(name, 20, 30, thread=AUTOGRAD)
    recording.op("aten::cat", 40, 50)
    assert handled(recording) == [[20, 30]]


def test_all_that_fully_shard_does_around_a_unit() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.span("FSDP::all_gather (blocks.1)", 20, 40)
    recording.span("FSDP::pre_forward (blocks.1)", 15, 45)
    assert handled(recording) == [[15, 45]]


def test_on_a_gpu_kernels_do_that() -> None:
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.op("fsdp::all_gather_copy_in", 20, 30)
    assert handled(recording) == []
