"""The whole digest: what stays small for any trace, its tables, and what it says that it cannot tell."""

from __future__ import annotations

import msgspec

from dpdoctor import rundir
from dpdoctor.attribution.collectives import MAX_CALLS
from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.devices import MAX_STEPS
from dpdoctor.attribution.digesting import MAX_CHARACTERS, MAX_ROWS, digest, kernel_times, operator_times
from dpdoctor.digest import Digest, NamedTime
from dpdoctor.trace.model import Kind, Trace
from tests.builders.traces import AUTOGRAD, MAIN, US, Recording

MEGABYTE = 1_000_000


def test_a_digest_stays_small_for_a_long_trace_with_long_names() -> None:
    recording = Recording()
    for number in range(2 * MAX_STEPS):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 110, at + 300, f"void kernel_{number % (2 * MAX_ROWS)}<{'float, ' * 1000}>")
        for call in range(4):
            begin = at + 320 + 100 * call
            recording.launched(begin, begin + 10, begin + 90, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=8)
    found = digest(recording.trace())
    data = rundir.encode(found)
    assert len(data) < MEGABYTE
    assert msgspec.json.decode(data, type=Digest) == found
    (device,) = found.devices
    assert (len(device.steps), device.num_dropped) == (MAX_STEPS, MAX_STEPS - 2)
    assert len(found.calls.begin_ns) == MAX_CALLS
    assert found.calls.num_dropped == 8 * MAX_STEPS - MAX_CALLS
    assert sum(len(row.name) for row in found.kernels[:-1]) <= MAX_CHARACTERS
    assert sum(row.count for row in found.kernels) == 10 * MAX_STEPS


def test_one_name_is_kept_however_long() -> None:
    recording = Recording()
    name = "é<b>" * MAX_CHARACTERS
    recording.kernel(0, 10, name)
    recording.kernel(0, 5, "short")
    assert [row.name for row in digest(recording.trace()).kernels] == [name, "(1 other)"]


def test_what_a_trace_cannot_tell_is_named() -> None:
    recording = Recording()
    recording.kernel(0, 10, "gemm")
    told = {item.what: item.reason for item in digest(recording.trace()).not_measured}
    assert "profile_memory" in told["memory"]
    (steps,) = [reason for what, reason in told.items() if what.startswith("steps, ")]
    assert "ProfilerStep#" in steps
    assert "Optimizer.step#" in steps
    assert "time breakdown" not in told


HOSTILE = "</script><b>" + "核" * 5000


def of_kernels(trace: Trace) -> tuple[NamedTime, ...]:
    return kernel_times(trace, device_events(trace, MAIN))


def test_kernels_are_added_up_by_name_on_each_device() -> None:
    recording = Recording()
    recording.kernel(0, 10, HOSTILE)
    recording.kernel(5, 30, "gemm")
    recording.kernel(20, 30, HOSTILE)
    recording.kernel(0, 10, "gemm", device=1)
    recording.on_device(Kind.MEMCPY, "Memcpy HtoD", 0, 2)
    assert of_kernels(recording.trace()) == (
        NamedTime(name="gemm", count=1, total_ns=25 * US, device=0),
        NamedTime(name=HOSTILE, count=2, total_ns=20 * US, device=0),
        NamedTime(name="Memcpy HtoD", count=1, total_ns=2 * US, device=0),
        NamedTime(name="gemm", count=1, total_ns=10 * US, device=1),
    )


def test_a_hundred_names_have_their_row_and_the_others_one() -> None:
    recording = Recording()
    for number in range(MAX_ROWS + 3):
        recording.kernel(0, 1000 - number, f"kernel {number}")
    table = of_kernels(recording.trace())
    assert [row.name for row in table[:MAX_ROWS]] == [f"kernel {number}" for number in range(MAX_ROWS)]
    assert table[MAX_ROWS:] == (NamedTime(name="(3 others)", count=3, total_ns=(900 + 899 + 898) * US, device=0),)


def test_operators_have_time_of_their_own_on_every_thread() -> None:
    recording = Recording()
    recording.op("aten::linear", 0, 10)
    recording.op("aten::addmm", 2, 9)
    recording.op("aten::addmm", 1, 5, thread=AUTOGRAD)  # beside, not inside
    recording.span("log", 3, 4)
    assert operator_times(recording.trace()) == (
        NamedTime(name="aten::addmm", count=2, total_ns=11 * US, self_ns=11 * US),
        NamedTime(name="aten::linear", count=1, total_ns=10 * US, self_ns=3 * US),
    )


def test_the_loops_own_spans_of_2021_are_no_operators() -> None:
    recording = Recording()
    recording.op("ProfilerStep#1", 0, 100)
    recording.op("aten::mm", 10, 20)
    assert [row.name for row in operator_times(recording.trace())] == ["aten::mm"]


def test_without_events_tables_are_empty() -> None:
    assert operator_times(Recording().trace()) == ()
    recording = Recording()
    recording.op("aten::mm", 0, 1)
    assert of_kernels(recording.trace()) == ()  # the host has none
