"""Why a device had nothing to do: by what the host thread was doing that launched what came next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_activity import Activity
from dpdoctor.attribution.intervals import Spans, contains, intersect, lengths_within, merge, subtract
from dpdoctor.digest import HOST
from dpdoctor.trace.columns import UNKNOWN

# A gap before something that was launched in time is the device's own latency when it is no longer than twice the usual
# gap between two such kernels of a stream, within these limits; a longer one waits for something.
_LATENCY_NS = (2_000, 10_000)
_LAUNCHING = {"optimizer", "dispatch"}


def idle_by_cause(
    gaps: Spans, device: DeviceEvents, activities: Mapping[int, Activity], training_thread: int
) -> dict[str, Spans]:
    """Return the gaps by cause: sets of times that are disjoint and add up to the gaps.

    Until the call that launched what ends a gap, it is the launching thread's activity, or where that shows none the
    training thread's; from then on it is launch latency. What was launched before the gap waits for the device.
    """
    found: defaultdict[str, list[Spans]] = defaultdict(list)
    if device.index == HOST:
        _book(gaps, [training_thread], activities, found)
    else:
        next_event = np.searchsorted(device.events.begin_ns, gaps[:, 1])
        called, thread = device.call_begin_ns[next_event], device.call_thread[next_event]
        is_early = device.call_end_ns[next_event] <= gaps[:, 0]
        is_short = gaps[:, 1] - gaps[:, 0] <= _usual_latency_ns(device)
        found["launch_latency"] += [gaps[is_early & is_short]]
        found["dependency"] += [gaps[is_early & ~is_short]]
        gaps, called, thread = gaps[~is_early], called[~is_early], thread[~is_early]
        called = np.clip(called, gaps[:, 0], gaps[:, 1])
        found["launch_latency"] += [np.stack((called, gaps[:, 1]), axis=1)]
        waits = np.stack((gaps[:, 0], called), axis=1)
        for launching in np.unique(thread).tolist():
            _book(merge(waits[thread == launching]), [launching, training_thread], activities, found)
    return {cause: merge(*spans) for cause, spans in found.items()}


def within(causes: Mapping[str, Spans], windows: Spans) -> list[dict[str, int]]:
    """Return for each window how long each cause lasted, those that did."""
    lengths = {cause: lengths_within(spans, windows).tolist() for cause, spans in causes.items()}
    return [{cause: ns[at] for cause, ns in lengths.items() if ns[at]} for at in range(len(windows))]


def _book(
    waits: Spans, threads: list[int], activities: Mapping[int, Activity], found: defaultdict[str, list[Spans]]
) -> None:
    """Add the host's times by cause. A host that waits for the device lets it run dry: launching anew is of that."""
    if threads[0] == UNKNOWN:
        found["unknown"] += [waits]
        return
    in_order = [activity for thread in dict.fromkeys(threads) for activity in activities[thread]]
    sync = merge(*(spans for cause, spans in in_order if cause == "sync"))
    ran_dry = contains(sync, waits[:, 0])
    for rest, is_dry in ((waits[~ran_dry], False), (waits[ran_dry], True)):
        left = rest
        for cause, spans in in_order:
            booked = "sync" if is_dry and cause in _LAUNCHING else cause
            found[booked] += [intersect(left, spans)]
            left = subtract(left, spans)
        found["python"] += [left]


def _usual_latency_ns(device: DeviceEvents) -> int:
    order = np.argsort(device.events.stream, kind="stable")
    stream, begin, end = (
        column[order] for column in (device.events.stream, device.events.begin_ns, device.events.end_ns)
    )
    queued = (stream[1:] == stream[:-1]) & (device.call_end_ns[order][1:] <= end[:-1]) & (begin[1:] >= end[:-1])
    between = (begin[1:] - end[:-1])[queued]
    lowest, highest = _LATENCY_NS
    return int(np.clip(2 * np.median(between), lowest, highest)) if len(between) else lowest
