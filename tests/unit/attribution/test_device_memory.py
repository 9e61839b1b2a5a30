from __future__ import annotations

from dpdoctor.attribution.devices import peak_bytes
from dpdoctor.digest import HOST
from dpdoctor.trace.columns import UNKNOWN
from tests.builders.traces import Recording


def test_peaks_are_of_each_device() -> None:
    recording = Recording()
    for device, allocated, reserved in ((0, 5, 20), (0, 9, 20), (1, 99, 200), (0, 7, 30)):
        recording.allocated(device, allocated, reserved)
    assert peak_bytes(recording.trace(), 0) == (9, 30)
    assert peak_bytes(recording.trace(), 1) == (99, 200)


def test_what_is_not_said_is_none_not_zero() -> None:
    recording = Recording()
    recording.allocated(0, 5, UNKNOWN)
    assert peak_bytes(recording.trace(), 0) == (5, None)
    assert peak_bytes(recording.trace(), 1) == (None, None)


def test_the_hosts_allocator_counts_only_what_it_saw() -> None:
    recording = Recording()
    recording.allocated(HOST, 5, 0)
    assert peak_bytes(recording.trace(), HOST) == (None, None)
