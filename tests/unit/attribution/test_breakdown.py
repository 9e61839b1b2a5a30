"""The five parts of a device's time: as a grid of ticks gives them, and as others computed them on real traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpdoctor.attribution.breakdown import activities, idle_by_cause, occupancy, whole_span, within
from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.steps import training_thread
from dpdoctor.digest import HOST, Breakdown
from dpdoctor.trace.model import Kind
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces
from tests.builders.traces import AUTOGRAD, GLOO, MAIN, US, Recording

EXPECTED: dict[str, Any] = json.loads((REAL / "expected.json").read_text()) if REAL.is_dir() else {}
PARTS = ("compute_us", "exposed_comm_us", "h2d_us", "copy_us", "idle_us", "total_us", "comm_us")
TICKS = 40
KINDS = {  # by the letter of the definition
    "K": (Kind.KERNEL, "gemm"),
    "C": (Kind.KERNEL, "ncclDevKernel_AllReduce"),
    "H": (Kind.MEMCPY, "Memcpy HtoD"),
    "M": (Kind.MEMCPY, "Memcpy DtoD"),
}


def random_device(rng: np.random.Generator, recording: Recording, device: int) -> dict[str, np.ndarray]:
    """Record up to 12 events and return by letter a grid of ticks that they cover."""
    ticks = {letter: np.zeros(TICKS, bool) for letter in KINDS}
    for letter in rng.choice(list(KINDS), rng.integers(1, 13)).tolist():
        begin = int(rng.integers(0, TICKS - 9))
        end = begin + int(rng.integers(0, 9))
        recording.on_device(*KINDS[letter], begin, end, device=device, stream=int(rng.integers(0, 3)))
        ticks[letter][begin:end] = True
    return ticks


def expected_budget(ticks: dict[str, np.ndarray], begin: int, end: int) -> Breakdown:
    k, c, h, m = (ticks[letter][begin:end] for letter in "KCHM")
    sums = [k, c & ~k, h & ~k & ~c, m & ~k & ~c & ~h, ~(k | c | h | m), c]
    compute, exposed, h2d, copy, idle, comm = (int(part.sum()) * US for part in sums)
    return Breakdown(compute_ns=compute, exposed_comm_ns=exposed, h2d_ns=h2d, copy_ns=copy, idle_ns=idle, comm_ns=comm)


def on_host(recording: Recording) -> Breakdown:
    """Return the breakdown of all that was recorded, where only the host computes."""
    (host,) = device_events(recording.trace(), MAIN)
    assert host.index == HOST
    (breakdown,) = occupancy(host).breakdowns(whole_span(host))
    return breakdown


def test_the_budget_equals_a_grid_on_every_device() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        recording = Recording()
        ticks = {device: random_device(rng, recording, device) for device in range(1 + int(rng.integers(0, 3)))}
        edges = np.sort(rng.integers(0, TICKS, 5)).tolist()
        observed = device_events(recording.trace(), MAIN)
        assert [device.index for device in observed] == list(ticks)
        for device in observed:
            windows = np.array([edges[:-1], edges[1:]]).T
            found = occupancy(device).breakdowns(windows * US)
            assert list(found) == [expected_budget(ticks[device.index], *window) for window in windows.tolist()]


@needs_real_traces
@pytest.mark.parametrize("name", EXPECTED)
def test_the_whole_span_is_what_others_computed(name: str) -> None:
    trace = read(REAL / name)
    observed = [device for device in device_events(trace, training_thread(trace)) if device.index != HOST]
    assert {str(device.index) for device in observed} == set(EXPECTED[name])
    for device in observed:
        (breakdown,) = occupancy(device).breakdowns(whole_span(device))
        figures = {part: getattr(breakdown, part.replace("_us", "_ns")) / US for part in PARTS}
        expected = {part: EXPECTED[name][str(device.index)][part] for part in PARTS}
        assert figures == pytest.approx(expected, rel=1e-3, abs=0.05)  # they are written to a tenth of a microsecond


def test_without_a_device_operators_compute_and_the_backends_threads_communicate() -> None:
    recording = Recording()
    recording.span("ProfilerStep#1", 0, 100)
    recording.op("aten::mm", 10, 30)
    recording.op("aten::empty", 12, 14)
    recording.span("gloo:all_reduce", 20, 50, thread=GLOO)
    recording.span("gloo:all_reduce", 40, 60, thread=GLOO + 1)
    recording.op("aten::mm", 0, 90, thread=GLOO)  # not of the training thread
    recording.op("aten::add", 70, 80)
    assert on_host(recording) == Breakdown(
        compute_ns=30 * US, exposed_comm_ns=30 * US, h2d_ns=0, copy_ns=0, idle_ns=10 * US, comm_ns=40 * US
    )


def test_an_operator_does_not_compute_while_a_hook_in_it_waits() -> None:
    recording = Recording()
    recording.op("autograd::engine::evaluate_function: MmBackward0", 0, 100)
    recording.span("FSDP::pre_backward (blocks.0)", 20, 70)
    recording.op("fsdp::split_with_sizes_copy", 60, 65)
    recording.span("gloo:all_gather", 30, 55, thread=GLOO)
    assert on_host(recording) == Breakdown(
        compute_ns=55 * US, exposed_comm_ns=25 * US, h2d_ns=0, copy_ns=0, idle_ns=20 * US, comm_ns=25 * US
    )


def test_an_operator_does_not_compute_while_it_waits_for_a_functional_collective() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 60)
    recording.op("autograd::engine::evaluate_function: WaitBackward", 60, 100)
    recording.op("_c10d_functional::wait_tensor", 60, 100)
    recording.span("gloo:all_reduce", 55, 98, thread=GLOO)
    assert on_host(recording) == Breakdown(
        compute_ns=60 * US, exposed_comm_ns=38 * US, h2d_ns=0, copy_ns=0, idle_ns=0, comm_ns=43 * US
    )


def waiting_function(outer: str, ends: int) -> Breakdown:
    """Return what an operator does until `ends` that calls an all-reduce, which lasts from 24 to 80."""
    recording = Recording()
    recording.op(outer, 0, ends)
    recording.op("aten::clone", 5, 15)
    recording.op("c10d::allreduce_", 20, 30)
    recording.span("gloo:all_reduce", 24, 80, thread=GLOO)
    recording.op("aten::mul", 82, 100)
    return on_host(recording)


@pytest.mark.parametrize("outer", ["Reduce", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"])
def test_an_operator_does_not_compute_while_it_waits_for_a_collective_that_it_called(outer: str) -> None:
    found = waiting_function(outer, 81)
    assert (found.compute_ns, found.exposed_comm_ns, found.comm_ns) == (49 * US, 50 * US, 56 * US)


def test_an_operator_that_only_begins_a_collective_computes() -> None:
    found = waiting_function("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 40)
    assert (found.compute_ns, found.exposed_comm_ns) == (58 * US, 40 * US)


def test_a_compiled_region_computes_beside_the_functional_collectives_in_it() -> None:
    recording = Recording()
    recording.op("CompiledFxGraph abc", 0, 100)
    recording.op("_c10d_functional::all_reduce", 10, 20)
    recording.op("c10d::allreduce_", 12, 18)
    recording.span("gloo:all_reduce", 15, 60, thread=GLOO)
    recording.op("_c10d_functional::wait_tensor", 50, 62)
    assert on_host(recording).compute_ns == 88 * US


def test_hooks_of_another_thread_keep_no_operator_from_computing() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 100)
    recording.span("FSDP::pre_backward (blocks.0)", 20, 70, thread=AUTOGRAD)
    assert on_host(recording).compute_ns == 100 * US


def test_the_loops_own_spans_do_not_compute_in_files_of_2021() -> None:
    recording = Recording()
    recording.op("ProfilerStep#1", 0, 100)
    recording.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 50)
    recording.op("aten::mm", 60, 80)
    recording.op("aten::mm", 90, 95)
    assert on_host(recording).compute_ns == 25 * US


def test_a_trace_of_nothing_has_no_device() -> None:
    assert device_events(Recording().trace(), -1) == ()


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
    """A device that idles from 100 to 200; what ends it is launched at 180 by a call of 2 µs."""
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.launched(180, 200, 300, thread=thread)
    recording.op("aten::empty", -20, -19)  # the profiler sees operators
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
        (lambda r: r.op("aten::_local_scalar_dense", 110, 150), "dispatch"),  # of a tensor on the host
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


def test_a_value_of_the_device_is_waited_for_by_a_call_of_the_driver() -> None:
    recording = gap()
    recording.op("aten::_local_scalar_dense", 105, 155)
    recording.call("cudaStreamSynchronize", 110, 150)
    assert idle(recording) == {"sync": 40, "dispatch": 10, "python": 30, "launch_latency": 20}


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
    for number in range(5):  # the usual gap of a stream: 1.5 µs, so up to 3 µs are the device's own
        recording.launched(2 * number, 100 + 11.5 * number, 110 + 11.5 * number)
    recording.launched(20, 159, 170)  # 3 µs after the last
    recording.launched(22, 220, 230, stream=8)
    assert idle(recording) == {"launch_latency": 4 * 1.5 + 3, "dependency": 50}


def test_a_launch_that_is_not_in_the_trace_is_unknown_unless_it_was_before_the_recording() -> None:
    recording = gap()
    recording.kernel(350, 360)
    recording.kernel(400, 410, correlation=7)
    assert idle(recording) == {"python": 80, "launch_latency": 20, "unknown": 50, "dependency": 40}


def test_a_kernel_that_begins_before_its_call_is_not_waited_for_any_longer() -> None:
    recording = Recording()
    recording.op("aten::empty", -20, -19)
    recording.launched(0, 0, 100)
    recording.launched(205, 200, 300)  # clocks of host and device differ
    assert idle(recording) == {"python": 100}


def test_where_no_operators_were_recorded_nobody_knows_whether_one_ran() -> None:
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.call("cudaStreamSynchronize", 110, 150)
    recording.launched(180, 200, 300)
    assert idle(recording) == {"sync": 40, "unknown": 40, "launch_latency": 20}


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
