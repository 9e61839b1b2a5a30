from __future__ import annotations

from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.host_steps import host_steps
from dpdoctor.attribution.intervals import length
from dpdoctor.attribution.phases import busy_by_phase
from dpdoctor.trace.columns import Kind
from tests.builders.traces import AUTOGRAD, GLOO, US, Recording

NODE = "autograd::engine::evaluate_function: MmBackward0"


def phases(recording: Recording) -> dict[str, float]:
    """Return the busy microseconds of each phase on the first device."""
    trace = recording.trace()
    steps = host_steps(trace)
    device, *_ = device_events(trace, steps.thread)
    return {phase: length(spans) / US for phase, spans in busy_by_phase(trace, steps, device).items()}


def step(recording: Recording, begin: float = 0) -> Recording:
    """A step of 200 us: forward 10, backward 20 on autograd's thread, optimizer 5."""
    recording.span(f"ProfilerStep#{begin}", begin, begin + 200)
    recording.launched(begin + 10, begin + 15, begin + 25)
    recording.op(NODE, begin + 40, begin + 60, thread=AUTOGRAD)
    recording.launched(begin + 45, begin + 50, begin + 70, thread=AUTOGRAD)
    recording.span("Optimizer.step#SGD.step", begin + 80, begin + 100)
    recording.launched(begin + 90, begin + 95, begin + 100)
    return recording


def test_phases_are_by_who_launched_not_by_when_it_ran() -> None:
    recording = step(Recording())
    recording.launched(11, 130, 145)  # a forward kernel that ran last
    assert phases(recording) == {"forward": 25, "backward": 20, "optimizer": 5, "other": 0}


def test_what_is_neither_is_other() -> None:
    recording = step(Recording())
    recording.launched(70, 110, 114)  # clipping: after the last of backward, before the optimizer
    recording.span("Optimizer.zero_grad#SGD.zero_grad", 2, 5)
    recording.launched(3, 6, 8)
    correlation = recording.call("cudaMemcpyAsync", 6, 7)
    recording.on_device(Kind.MEMCPY, "Memcpy HtoD", 8, 9, correlation=correlation)
    recording.launched(230, 230, 231)  # outside of every step
    recording.kernel(240, 241)  # launched by nobody knows whom
    assert phases(recording)["other"] == 4 + 2 + 1 + 1 + 1


def test_a_hook_between_two_nodes_of_autograd_is_backward() -> None:
    recording = step(Recording())
    recording.launched(65, 120, 130, "ncclDevKernel_AllReduce", thread=AUTOGRAD)
    assert phases(recording)["backward"] == 30


def test_accumulated_forwards_are_forward_too() -> None:
    recording = step(Recording())
    recording.launched(62, 120, 122)  # the second micro-batch
    recording.op(NODE, 70, 75, thread=AUTOGRAD)
    recording.launched(72, 130, 134, thread=AUTOGRAD)
    assert phases(recording) == {"forward": 12, "backward": 24, "optimizer": 5, "other": 0}


def test_a_step_without_backward_is_forward() -> None:
    recording = step(Recording())
    recording.span("ProfilerStep#7", 200, 300)
    recording.launched(250, 255, 265)
    assert phases(recording)["forward"] == 20


def test_files_of_2021_have_only_the_nodes_names() -> None:
    recording = Recording()
    recording.op("ProfilerStep#1", 0, 200)
    recording.launched(10, 15, 25)
    recording.op("NllLossBackward", 40, 60, thread=AUTOGRAD)
    recording.launched(45, 50, 70, thread=AUTOGRAD)
    assert phases(recording) == {"forward": 10, "backward": 20, "optimizer": 0, "other": 0}


def test_on_the_host_a_collective_belongs_to_the_phase_that_queued_it() -> None:
    recording = Recording()
    recording.span("ProfilerStep#1", 0, 200)
    recording.op("aten::mm", 10, 20)
    recording.op(NODE, 40, 60)
    recording.op("c10d::allreduce_", 50, 52)
    recording.span("gloo:all_reduce", 65, 75, thread=GLOO)
    recording.span("Optimizer.step#SGD.step", 80, 100)
    recording.op("aten::add_", 90, 95)
    assert phases(recording) == {"forward": 10, "backward": 30, "optimizer": 5, "other": 0}
