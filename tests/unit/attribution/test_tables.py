from __future__ import annotations

from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.tables import MAX_ROWS, kernels, operators
from dpdoctor.digest import NamedTime
from dpdoctor.trace.model import Kind, Trace
from tests.builders.traces import AUTOGRAD, MAIN, US, Recording

HOSTILE = "</script><b>" + "核" * 5000


def of_kernels(trace: Trace) -> tuple[NamedTime, ...]:
    return kernels(trace, device_events(trace, MAIN))


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
    assert operators(recording.trace()) == (
        NamedTime(name="aten::addmm", count=2, total_ns=11 * US, self_ns=11 * US),
        NamedTime(name="aten::linear", count=1, total_ns=10 * US, self_ns=3 * US),
    )


def test_the_loops_own_spans_of_2021_are_no_operators() -> None:
    recording = Recording()
    recording.op("ProfilerStep#1", 0, 100)
    recording.op("aten::mm", 10, 20)
    assert [row.name for row in operators(recording.trace())] == ["aten::mm"]


def test_without_events_tables_are_empty() -> None:
    assert operators(Recording().trace()) == ()
    recording = Recording()
    recording.op("aten::mm", 0, 1)
    assert of_kernels(recording.trace()) == ()  # the host has none
