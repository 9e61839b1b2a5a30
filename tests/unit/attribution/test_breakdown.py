"""The five parts of a device's time: as a grid of ticks gives them, and as others computed them on real traces."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dpdoctor.attribution.breakdown import occupancy, whole_span
from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.host_steps import training_thread
from dpdoctor.digest import HOST, Breakdown
from dpdoctor.trace.columns import Kind
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
    (host,) = device_events(recording.trace(), MAIN)
    (breakdown,) = occupancy(host).breakdowns(whole_span(host))
    assert host.index == HOST
    assert breakdown == Breakdown(
        compute_ns=30 * US, exposed_comm_ns=30 * US, h2d_ns=0, copy_ns=0, idle_ns=10 * US, comm_ns=40 * US
    )


def test_an_operator_does_not_compute_while_a_hook_in_it_waits() -> None:
    recording = Recording()
    recording.op("autograd::engine::evaluate_function: MmBackward0", 0, 100)
    recording.span("FSDP::pre_backward (blocks.0)", 20, 70)
    recording.op("fsdp::split_with_sizes_copy", 60, 65)
    recording.span("gloo:all_gather", 30, 55, thread=GLOO)
    (host,) = device_events(recording.trace(), MAIN)
    (breakdown,) = occupancy(host).breakdowns(whole_span(host))
    assert breakdown == Breakdown(
        compute_ns=55 * US, exposed_comm_ns=25 * US, h2d_ns=0, copy_ns=0, idle_ns=20 * US, comm_ns=25 * US
    )


def test_hooks_of_another_thread_keep_no_operator_from_computing() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 100)
    recording.span("FSDP::pre_backward (blocks.0)", 20, 70, thread=AUTOGRAD)
    (host,) = device_events(recording.trace(), MAIN)
    assert occupancy(host).breakdowns(whole_span(host))[0].compute_ns == 100 * US


def test_the_loops_own_spans_do_not_compute_in_files_of_2021() -> None:
    recording = Recording()
    recording.op("ProfilerStep#1", 0, 100)
    recording.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 50)
    recording.op("aten::mm", 60, 80)
    recording.op("aten::mm", 90, 95)
    (host,) = device_events(recording.trace(), MAIN)
    assert occupancy(host).breakdowns(whole_span(host))[0].compute_ns == 25 * US


def test_a_trace_of_nothing_has_no_device() -> None:
    assert device_events(Recording().trace(), -1) == ()
