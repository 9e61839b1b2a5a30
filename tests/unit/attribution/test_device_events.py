from __future__ import annotations

from dpdoctor.attribution.device_events import BEFORE_RECORDING, NEVER_SEEN, device_events
from dpdoctor.trace.model import UNKNOWN
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
