"""The whole digest: what stays small for any trace, and what it says that it cannot tell."""

from __future__ import annotations

import msgspec

from dpdoctor import rundir
from dpdoctor.attribution.collective_calls import MAX_CALLS
from dpdoctor.attribution.devices import MAX_STEPS
from dpdoctor.attribution.digesting import digest
from dpdoctor.attribution.tables import MAX_CHARACTERS, MAX_ROWS
from dpdoctor.digest import Digest
from tests.builders.traces import Recording

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
