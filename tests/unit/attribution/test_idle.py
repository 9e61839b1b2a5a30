"""Why a device idled: one gap at a time, and real traces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpdoctor.attribution.breakdown import occupancy, whole_span
from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.host_activity import activities
from dpdoctor.attribution.idle import idle_by_cause, within
from dpdoctor.trace.columns import Kind
from tests.builders.traces import AUTOGRAD, GLOO, MAIN, US, Recording

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def idle(recording: Recording, index: int = 0) -> dict[str, float]:
    """Return by cause how many microseconds a device idled between its first and last event."""
    trace = recording.trace()
    observed = device_events(trace, MAIN)
    device = observed[index]
    span = whole_span(device)
    used = occupancy(device)
    causes = idle_by_cause(used.idle(span), device, activities(trace, observed, MAIN), MAIN)
    (found,) = within(causes, span)
    assert sum(found.values()) == used.breakdowns(span)[0].idle_ns
    return {cause: ns / US for cause, ns in found.items()}


def gap(thread: int = MAIN) -> Recording:
    """A device that idles from 100 to 200; what ends it is launched at 180 by a call of 2 us."""
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.launched(180, 200, 300, thread=thread)
    return recording


def test_until_the_launch_it_is_the_hosts_from_then_on_latency() -> None:
    assert idle(gap()) == {"python": 80, "launch_latency": 20}


@pytest.mark.parametrize(
    ("show", "cause"),
    [
        (lambda r: r.span(LOADER, 110, 150), "data"),
        (lambda r: r.op(LOADER, 110, 150), "data"),  # 2021
        (lambda r: r.call("cudaStreamSynchronize", 110, 150), "sync"),
        (lambda r: r.call("hipDeviceSynchronize", 110, 150), "sync"),
        (lambda r: r.op("aten::_local_scalar_dense", 110, 150), "sync"),
        (lambda r: r.call("cudaMalloc", 110, 150), "allocator"),
        (lambda r: r.call("hipFree", 110, 150), "allocator"),
        (lambda r: r.call("cuMemCreate", 110, 150), "allocator"),
        (lambda r: r.call("cuMemcpyHtoDAsync_v2", 110, 150), "dispatch"),
        (lambda r: r.span("Python GC", 110, 150), "gc"),
        (lambda r: r.op("c10d::barrier", 110, 150), "comm_wait"),
        (lambda r: r.span("gloo:all_reduce", 110, 150, thread=GLOO), "comm_wait"),
        (lambda r: r.span("save checkpoint", 110, 150), "annotation"),
        (lambda r: r.span("Optimizer.step#SGD.step", 110, 150), "optimizer"),
        (lambda r: r.op("aten::add", 110, 150), "dispatch"),
        (lambda r: r.call("cudaEventQuery", 110, 150), "dispatch"),
        (lambda r: r.span("DistributedDataParallel.forward", 110, 150), "python"),
        (lambda r: r.op("aten::add", 110, 150, thread=5), "python"),  # a thread that launches nothing
    ],
)
def test_what_the_launching_thread_did(show: Callable[[Recording], object], cause: str) -> None:
    recording = gap()
    show(recording)
    expected = {"python": 40, "launch_latency": 20}
    expected[cause] = expected.get(cause, 0) + 40
    assert idle(recording) == expected


def test_a_copy_to_the_host_is_waited_for() -> None:
    recording = gap()
    correlation = recording.call("cudaMemcpyAsync", 110, 150)
    recording.on_device(Kind.MEMCPY, "Memcpy DtoH (Device -> Pageable)", 50, 60, correlation=correlation)
    assert idle(recording) == {"sync": 40, "python": 40, "launch_latency": 20}


def test_of_several_activities_the_one_that_explains_most_counts() -> None:
    recording = gap()
    recording.span(LOADER, 105, 120)
    recording.op("aten::stack", 110, 130)
    recording.span("Optimizer.step#SGD.step", 125, 150)
    recording.op("aten::add_", 140, 160)
    assert idle(recording) == {"data": 15, "optimizer": 25, "dispatch": 15, "python": 25, "launch_latency": 20}


def test_a_span_of_the_script_that_launches_kernels_explains_nothing() -> None:
    recording = gap()
    recording.span("## forward ##", 90, 400)
    recording.op("aten::mm", 110, 185)
    assert idle(recording) == {"python": 10, "dispatch": 70, "launch_latency": 20}


def test_a_host_that_waited_launches_anew_because_of_it() -> None:
    # The device ran dry while the host waited for it; the operators after that come too late on its account.
    recording = gap()
    recording.call("cudaStreamSynchronize", 20, 103)
    recording.op("aten::mm", 110, 185)
    assert idle(recording) == {"sync": 73, "python": 7, "launch_latency": 20}
    slow = gap()
    slow.call("cudaStreamSynchronize", 20, 90)  # over before the device ran dry
    slow.op("aten::mm", 110, 185)
    assert idle(slow) == {"dispatch": 70, "python": 10, "launch_latency": 20}


def test_what_the_launching_thread_does_not_explain_the_training_thread_does() -> None:
    recording = gap(thread=AUTOGRAD)
    recording.span(LOADER, 100, 140)
    recording.op("autograd::engine::evaluate_function: MmBackward0", 150, 190, thread=AUTOGRAD)
    assert idle(recording) == {"data": 40, "python": 10, "dispatch": 30, "launch_latency": 20}


def test_launched_in_time_a_short_gap_is_latency_a_long_one_waits_for_other_work() -> None:
    recording = Recording()
    for number in range(5):  # the usual gap of a stream: 1.5 us, so up to 3 us are the device's own
        recording.launched(2 * number, 100 + 11.5 * number, 110 + 11.5 * number)
    recording.launched(20, 159, 170)  # 3 us after the last
    recording.launched(22, 220, 230, stream=8)
    assert idle(recording) == {"launch_latency": 4 * 1.5 + 3, "dependency": 50}


def test_a_launch_that_is_not_in_the_trace_is_unknown_unless_it_was_before_the_recording() -> None:
    recording = gap()
    recording.kernel(350, 360)
    recording.kernel(400, 410, correlation=7)
    assert idle(recording) == {"python": 80, "launch_latency": 20, "unknown": 50, "dependency": 40}


def test_a_kernel_that_begins_before_its_call_is_not_waited_for_any_longer() -> None:
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.launched(205, 200, 300)  # clocks of host and device differ
    assert idle(recording) == {"python": 100}


def test_a_call_that_returns_as_the_device_runs_dry_was_in_time() -> None:
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.launched(98, 150, 160)
    assert idle(recording) == {"dependency": 50}


def test_the_loops_own_spans_of_2021_are_no_dispatch() -> None:
    recording = gap()
    recording.op("ProfilerStep#1", 0, 400)
    assert idle(recording) == {"python": 80, "launch_latency": 20}


def test_each_device_has_its_own_gaps() -> None:
    recording = gap()
    recording.launched(300, 300, 400, device=1)
    recording.span(LOADER, 400, 450)
    recording.launched(450, 452, 500, device=1)
    assert idle(recording, 1) == {"data": 50, "launch_latency": 2}


def test_on_the_host_gaps_are_what_the_training_thread_did_without_operators() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.span(LOADER, 20, 60)
    recording.op("aten::stack", 30, 35)
    recording.span("gloo:all_reduce", 50, 70, thread=GLOO)
    recording.span("Optimizer.step#SGD.step", 80, 100)
    recording.op("aten::add_", 85, 95)
    recording.span("log", 110, 120)
    recording.op("aten::mm", 130, 140)
    assert idle(recording) == {"data": 25, "optimizer": 10, "annotation": 10, "python": 40}


def test_between_the_phases_of_a_step_it_is_the_loops_own_code() -> None:
    recording = Recording()
    recording.span("dpdoctor: forward", 0, 30)
    recording.op("aten::mm", 0, 10)
    recording.op("aten::mm", 20, 30)
    recording.op("aten::add", 40, 45)
    recording.span("log", 50, 60)
    recording.span("dpdoctor: backward", 80, 100)
    recording.op("aten::mm", 90, 100)
    assert idle(recording) == {"annotation": 10, "script": 35, "python": 20}


def test_so_it_is_for_a_device_that_waits_for_it() -> None:
    recording = gap()
    recording.span("dpdoctor: forward", 90, 120)
    recording.span("dpdoctor: backward", 150, 190)
    assert idle(recording) == {"script": 30, "python": 50, "launch_latency": 20}


def test_lengths_are_per_window() -> None:
    causes = {"data": np.array([[0, 10], [20, 30]]), "sync": np.array([[12, 14]])}
    assert within(causes, np.array([[0, 13], [13, 25], [40, 50]])) == [
        {"data": 10, "sync": 1},
        {"data": 5, "sync": 1},
        {},
    ]
