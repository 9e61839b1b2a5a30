"""The digest of each device of a trace: what holds for all of them, and what real traces are known to show."""

from __future__ import annotations

import pytest

from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.devices import devices
from dpdoctor.attribution.host_activity import activities
from dpdoctor.attribution.host_steps import host_steps
from dpdoctor.digest import HOST, IDLE_CAUSES, PHASES, DeviceDigest
from dpdoctor.trace.model import Trace
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces
from tests.builders.traces import AUTOGRAD, GLOO, US, Recording

ALL_REAL = sorted(str(path.relative_to(REAL)) for path in REAL.rglob("*.json.gz"))


def digests(trace: Trace) -> tuple[DeviceDigest, ...]:
    steps = host_steps(trace)
    observed = device_events(trace, steps.thread)
    return devices(trace, steps, observed, activities(trace, observed, steps.thread))


def share(device: DeviceDigest, cause: str) -> float:
    """Return a cause of idleness as a share of the steps."""
    return sum(step.idle_by.get(cause, 0) for step in device.steps) / sum(s.breakdown.total_ns for s in device.steps)


def test_a_small_training_run() -> None:
    recording = Recording()
    for number in range(3):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 110, at + 300)
        recording.op("autograd::engine::evaluate_function: MmBackward0", at + 290, at + 400, thread=AUTOGRAD)
        recording.launched(at + 300, at + 310, at + 610, thread=AUTOGRAD)
        recording.launched(at + 320, at + 500, at + 800, "ncclDevKernel_AllReduce", thread=AUTOGRAD, stream=8)
    recording.allocated(0, 4096, 8192)
    (device,) = digests(recording.trace())
    (step,) = device.steps
    assert (device.index, device.name, device.begin_ns, device.launches) == (0, "GPU A", 110 * US, 3)
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (4096, 8192)
    assert (step.step, step.begin_ns, step.end_ns) == (1, 800 * US, 1800 * US)
    assert (step.breakdown.compute_ns, step.breakdown.exposed_comm_ns) == (490 * US, 190 * US)
    assert step.idle_by == {"python": 300 * US, "launch_latency": 20 * US}
    assert step.phases_ns == {"forward": 190 * US, "backward": 490 * US}
    assert device.launch_delay is not None
    assert device.launch_delay.n == 9


def test_a_step_may_begin_before_the_device_does_anything() -> None:
    recording = Recording()
    recording.span("ProfilerStep#0", 0, 200)
    recording.launched(100, 110, 300)
    (device,) = digests(recording.trace())
    assert (device.whole.idle_ns, device.idle_by) == (0, {})
    assert device.steps[0].idle_by == {"python": 100 * US, "launch_latency": 10 * US}


def test_a_device_that_the_file_does_not_name_has_no_name() -> None:
    recording = Recording(devices=())
    recording.launched(0, 5, 10)
    (device,) = digests(recording.trace())
    assert (device.name, device.steps, device.launches) == ("", (), 0)
    assert device.whole.compute_ns == 5 * US


def test_every_device_of_one_process_has_its_digest() -> None:
    recording = Recording()
    recording.launched(0, 5, 10)
    recording.launched(0, 20, 50, device=1)
    first, second = digests(recording.trace())
    assert (first.index, first.whole.total_ns) == (0, 5 * US)
    assert (second.index, second.name, second.whole.total_ns) == (1, "GPU B", 30 * US)


def test_the_host_is_the_device_of_a_trace_without_any() -> None:
    recording = Recording()
    for number in range(3):
        at = 100 * number
        recording.span(f"ProfilerStep#{number}", at, at + 100)
        recording.op("aten::mm", at + 10, at + 40)
        recording.span("gloo:all_reduce", at + 30, at + 60, thread=GLOO)
    (host,) = digests(recording.trace())
    assert (host.index, host.launches, host.launch_delay) == (HOST, 0, None)
    (step,) = host.steps
    assert (step.step, step.breakdown.compute_ns, step.breakdown.exposed_comm_ns) == (1, 30 * US, 20 * US)
    assert step.idle_by == {"python": 50 * US}


@needs_real_traces
@pytest.mark.parametrize("name", ALL_REAL)
def test_parts_causes_and_phases_of_real_traces_add_up(name: str) -> None:
    for device in digests(read(REAL / name)):
        assert sum(device.idle_by.values()) == device.whole.idle_ns
        assert set(device.idle_by) <= set(IDLE_CAUSES)
        for step in device.steps:
            assert step.breakdown.total_ns == step.end_ns - step.begin_ns
            assert sum(step.idle_by.values()) == step.breakdown.idle_ns
            assert sum(step.phases_ns.values()) == step.breakdown.total_ns - step.breakdown.idle_ns
            assert set(step.phases_ns) <= set(PHASES)


@needs_real_traces
def test_workers_of_the_loader_take_the_wait_away() -> None:
    (without,) = digests(read(REAL / "resnet50_num_workers_0.json.gz"))
    (with_four,) = digests(read(REAL / "resnet50_num_workers_4.json.gz"))
    assert share(without, "data") > 0.3
    assert share(with_four, "data") < 0.01


@needs_real_traces
def test_many_small_kernels_are_bound_by_launching() -> None:
    (device,) = digests(read(REAL / "v100x2_ddp_rank1.json.gz"))
    assert share(device, "dispatch") > 0.3
    assert device.launch_delay is not None
    assert device.launch_delay.p50_ns < 5 * US
