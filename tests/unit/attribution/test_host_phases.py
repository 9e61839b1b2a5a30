"""The phases that dpdoctor marked in its own traces."""

from __future__ import annotations

from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.devices import devices
from dpdoctor.attribution.host_activity import activities
from dpdoctor.attribution.host_steps import host_steps
from dpdoctor.attribution.intervals import length
from dpdoctor.attribution.phases import host_phases
from dpdoctor.digest import DeviceStep
from tests.builders.traces import AUTOGRAD, GLOO, MAIN, US, Recording


def step_of(recording: Recording) -> DeviceStep:
    """Return the only step, on the host."""
    trace = recording.trace()
    steps = host_steps(trace)
    observed = device_events(trace, steps.thread)
    (device,) = devices(trace, steps, observed, activities(trace, observed, steps.thread))
    (step,) = device.steps
    return step


def recorded() -> Recording:
    """A step of 200 us: it waits 20 for data, forward takes 50, backward 80, and 15 are between them."""
    recording = Recording()
    recording.span("ProfilerStep#0", 0, 200)
    recording.op("aten::mm", 30, 40)
    recording.span("dpdoctor: data_wait", 0, 20)
    recording.span("dpdoctor: forward", 25, 75)
    recording.span("dpdoctor: backward", 90, 170)
    return recording


def test_what_no_phase_holds_is_other() -> None:
    step = step_of(recorded())
    assert {phase: ns / US for phase, ns in step.host_phases_ns.items()} == {
        "data_wait": 20,
        "forward": 50 + 15,
        "backward": 80,
        "other": 35,
    }
    assert sum(step.host_phases_ns.values()) == step.breakdown.total_ns


def test_a_forward_inside_of_the_optimizer_is_forward() -> None:
    recording = recorded()
    recording.span("dpdoctor: optimizer", 20, 180)
    found = step_of(recording).host_phases_ns
    assert (found["forward"], found["backward"], found["optimizer"]) == (50 * US, 80 * US, 30 * US)


def test_what_lies_between_two_phases_is_as_the_clock_of_the_phases_has_it() -> None:
    recording = recorded()
    recording.span("dpdoctor: data_wait", 80, 83)
    recording.span("dpdoctor: optimizer", 180, 190)
    found = step_of(recording).host_phases_ns
    assert {phase: ns / US for phase, ns in found.items()} == {
        "data_wait": 23,
        "forward": 50 + 12,
        "backward": 80,
        "optimizer": 10 + 10,
        "other": 5 + 10,
    }


def test_a_gap_from_one_step_to_the_next_is_of_no_phase() -> None:
    recording = recorded()
    recording.span("ProfilerStep#1", 200, 300)
    recording.span("dpdoctor: backward", 250, 260)
    trace = recording.trace()
    steps = host_steps(trace)
    (device,) = device_events(trace, steps.thread)
    assert length(host_phases(trace, steps, device)["backward"]) == 90 * US


def test_a_phase_of_another_thread_is_none_of_the_step() -> None:
    recording = recorded()
    recording.span("dpdoctor: optimizer", 0, 200, thread=AUTOGRAD)
    assert "optimizer" not in step_of(recording).host_phases_ns


def test_handling_is_of_the_phase_in_which_it_happens_on_any_thread() -> None:
    recording = recorded()
    recording.op("aten::flatten_dense_tensors", 50, 60)
    recording.op("torch::distributed::reducer::mul_out", 100, 130, thread=AUTOGRAD)
    recording.span("gloo:all_reduce", 110, 115, thread=GLOO)
    recording.op("aten::flatten_dense_tensors", 165, 175)
    found = step_of(recording).comm_host_ns
    assert {phase: ns / US for phase, ns in found.items()} == {"forward": 10, "backward": 30, "other": 5}


def test_on_a_gpu_the_host_is_not_what_computes() -> None:
    recording = recorded()
    recording.launched(30, 40, 50)
    trace = recording.trace()
    steps = host_steps(trace)
    (device,) = device_events(trace, MAIN)
    assert host_phases(trace, steps, device) == {}
