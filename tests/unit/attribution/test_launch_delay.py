from __future__ import annotations

from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.devices import launch_delay
from dpdoctor.digest import Quantiles
from dpdoctor.trace.columns import Kind
from tests.builders.traces import MAIN, US, Recording


def delay(recording: Recording) -> Quantiles | None:
    trace = recording.trace()
    return launch_delay(trace, device_events(trace, MAIN)[0])


def test_it_is_from_the_end_of_the_call_to_the_begin_of_the_kernel() -> None:
    recording = Recording()
    for number, wait in enumerate((5, 1, 3, 2, 4)):
        recording.launched(100 * number, 100 * number + 2 + wait, 100 * number + 20)
    assert delay(recording) == Quantiles(n=5, p50_ns=3 * US, p90_ns=round(4.6 * US), max_ns=5 * US)


def test_a_kernel_that_begins_before_its_call_returns_did_not_wait() -> None:
    recording = Recording()
    recording.launched(10, 11, 20)
    assert delay(recording) == Quantiles(n=1, p50_ns=0, p90_ns=0, max_ns=0)


def test_only_launches_that_are_seen_and_of_single_kernels_count() -> None:
    recording = Recording()
    recording.kernel(0, 10)
    graph = recording.call("cudaGraphLaunch", 10, 12)
    recording.kernel(20, 30, correlation=graph)
    copy = recording.call("cudaMemcpyAsync", 30, 32)
    recording.on_device(Kind.MEMCPY, "Memcpy HtoD", 40, 50, correlation=copy)
    assert delay(recording) is None
