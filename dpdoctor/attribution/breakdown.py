"""Where the time of a device went: five parts that add up to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import Spans, clip, complement, exclusive, lengths_within, merge
from dpdoctor.attribution.parts import Part
from dpdoctor.digest import Breakdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """When a device did what: sets of times.

    Attributes:
        exclusive: by Part, each without the times of the parts before it: beside compute, all is compute.
        comm: all communication, hidden or not.
        busy: whenever anything ran.
    """

    exclusive: tuple[Spans, ...]
    comm: Spans
    busy: Spans

    def idle(self, windows: Spans) -> Spans:
        """Return when nothing ran, from the begin of the first window to the end of the last."""
        if not len(windows):
            return merge()
        return clip(complement(self.busy), int(windows.min()), int(windows.max()))

    def breakdowns(self, windows: Spans) -> tuple[Breakdown, ...]:
        """Return the parts of each window."""
        parts = np.stack([lengths_within(spans, windows) for spans in (*self.exclusive, self.comm)])
        free = lengths_within(self.idle(windows), windows)
        total = windows[:, 1] - windows[:, 0]
        if not np.array_equal(parts[: len(Part)].sum(axis=0) + free, total):
            raise AssertionError("the parts of the breakdown do not add up to the window")
        return tuple(
            Breakdown(compute_ns=compute, exposed_comm_ns=exposed, h2d_ns=h2d, copy_ns=copy, idle_ns=idle, comm_ns=comm)
            for compute, exposed, h2d, copy, comm, idle in zip(*parts.tolist(), free.tolist(), strict=True)
        )


def occupancy(device: DeviceEvents) -> Occupancy:
    """Return when a device did what (the algebra of TraceLens: compute hides communication hides copies)."""
    sets = [merge(device.events.spans[device.part == part]) for part in Part]
    return Occupancy(exclusive=tuple(exclusive(sets)), comm=sets[Part.COMM], busy=merge(*sets))


def whole_span(device: DeviceEvents) -> Spans:
    """Return int64[1, 2]: from the begin of the first event to the end of the last."""
    return np.array([[device.events.begin_ns.min(), device.events.end_ns.max()]], np.int64)
