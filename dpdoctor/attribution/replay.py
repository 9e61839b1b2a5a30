"""What traced steps would take without the waits that a script can leave out: they are replayed without them.

A host that waits for the device cannot run ahead of it, so that the device idles not only after the wait: all that the
host does until its next wait, loading a batch among it, would else be hidden behind kernels.

What launches is one sequence in time, whatever its thread: backward launches while the training thread waits for it.
What was launched begins when the host has launched it, and when all has ended that was launched before it and had ended
when it began; it takes as long as it did. A wait that stays ends as long after what it was for as it did.

The steps are replayed twice in a row: what the second round takes is what they take once the host is ahead, and nothing
is gained by putting work off beyond the last step.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.breakdown import SYNC, TO_HOST
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_events import host_rows, is_inside
from dpdoctor.attribution.steps import HostSteps
from dpdoctor.digest import HOST, Replay
from dpdoctor.trace.model import UNKNOWN, Kind, Trace

# A profiler slows the host, and nobody knows here by how much: replayed at several speeds.
HOST_TIMES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
# A step more is replayed only as long as all of them launch less than this.
MOST_LAUNCHES = 20_000
# What begins later than this after all that is known to hold it up waits for something else, and goes on doing so.
_ORDINARY_NS = 10_000
# Into such memory a copy to the host is over when its call returns.
_PAGEABLE = r"Pageable|D2M|-> Host"
_EVENT = r"EventSynchronize"
# As a share of what was observed.
_MOST_OFF = 0.03

_Integers = NDArray[np.int64]
_Mask = NDArray[np.bool_]


def replay(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents]) -> Replay | None:
    """Return the whole steps with and without the waits that can be left out.

    None: there are none, the trace does not say when all of the work was launched, or what is replayed with every wait
    does not last as long as it did.
    """
    devices = [device for device in observed if device.index != HOST]
    window = _window(steps, devices)
    if window is None:
        return None
    (begin_ns, end_ns), num_steps = window
    launched = _launched(devices, trace, end_ns)
    waits = _waits(trace, steps.thread, launched, begin_ns, end_ns)
    if not waits.can_go.any() or not launched.is_known(begin_ns):
        return None
    script = _script(launched, waits, begin_ns, end_ns)
    if not script.is_sound():
        return None

    def step_ns(host_time: float, *, without: bool) -> int:
        first_ns, second_ns = script.ends_of_rounds_ns(host_time, without=without)
        return round((second_ns - first_ns) / num_steps)

    return Replay(
        num_steps=num_steps,
        host_times=HOST_TIMES,
        step_ns=tuple(step_ns(host_time, without=False) for host_time in HOST_TIMES),
        without_ns=tuple(step_ns(host_time, without=True) for host_time in HOST_TIMES),
    )


def _window(steps: HostSteps, devices: Sequence[DeviceEvents]) -> tuple[tuple[int, int], int] | None:
    """Return from when to when the host ran the steps to replay, and how many; None: there are none.

    In the first step and the last one the profiler itself waits for the devices.
    """
    spans = steps.spans[1:-1]
    if not devices or not len(spans):
        return None
    called = np.sort(np.concatenate([device.call_begin_ns for device in devices]))
    num_launches = np.searchsorted(called, spans[:, 1]) - np.searchsorted(called, spans[0, 0])
    num = max(1, int(np.count_nonzero(num_launches <= MOST_LAUNCHES)))
    return (int(spans[0, 0]), int(spans[num - 1, 1])), num


class _Launched(msgspec.Struct, frozen=True, kw_only=True):
    """What ran on all devices of a rank and was launched before the end of the steps, in the order of launching.

    Attributes:
        call: int64[n], the row of the launching call; UNKNOWN: the trace does not hold it.
        at_ns: int64[n], when it was launched.
        begin_ns, end_ns: int64[n], when it ran.
        stream: int64[n], from 0, of all devices.
        is_awaited: bool[n], copies whose call waited for them.
        is_to_host: bool[n], copies to the host.
        is_copy: bool[n].
    """

    call: _Integers
    at_ns: _Integers
    begin_ns: _Integers
    end_ns: _Integers
    stream: _Integers
    is_awaited: _Mask
    is_to_host: _Mask
    is_copy: _Mask

    def is_known(self, since_ns: int) -> bool:
        """Return whether the launch is known of all that ran since then and was not launched before the recording."""
        return not ((self.call == UNKNOWN) & (self.begin_ns >= since_ns) & (self.at_ns > np.iinfo(np.int64).min)).any()

    def last_of(self, num: _Integers, ended_ns: _Integers) -> _Integers:
        """Return int64[k, streams]: of the first `num` launches the last of each stream that had ended by then.

        -1: none.
        """
        found = np.full((len(num), int(self.stream.max(initial=-1)) + 1), -1, np.int64)
        for stream in range(found.shape[1]):
            rows = np.flatnonzero(self.stream == stream)
            num_ended = np.searchsorted(np.maximum.accumulate(self.end_ns[rows]), ended_ns, side="right")
            found[:, stream] = np.concatenate(([-1], rows))[np.minimum(np.searchsorted(rows, num), num_ended)]
        return found


def _launched(devices: Sequence[DeviceEvents], trace: Trace, until_ns: int) -> _Launched:
    def of_all(columns: Sequence[NDArray[np.int64]]) -> _Integers:
        return np.concatenate(columns)

    call = of_all([device.call for device in devices])
    called, returned = (of_all([getattr(d, name) for d in devices]) for name in ("call_begin_ns", "call_end_ns"))
    rows = of_all([device.rows for device in devices])
    begin, end = trace.events.begin_ns[rows], trace.events.end_ns[rows]
    _, stream = np.unique(trace.events.stream[rows], return_inverse=True)
    device = trace.events.device[rows].astype(np.int64)
    _, stream = np.unique(device * len(rows) + stream, return_inverse=True)  # axis=0 sorts slowly
    is_copy = trace.events.kind[rows] == Kind.MEMCPY
    is_to_host = is_copy & trace.named(TO_HOST)[trace.events.name[rows]]
    is_awaited = is_copy & (call != UNKNOWN) & _is_awaited(trace, rows, call, is_to_host)
    at = np.where(is_awaited, called, np.minimum(returned, begin))
    at[call == UNKNOWN] = np.where(called == np.iinfo(np.int64).min, called, begin)[call == UNKNOWN]
    order = np.lexsort((begin, at))
    order = order[at[order] < until_ns]
    return _Launched(
        call=call[order],
        at_ns=at[order],
        begin_ns=begin[order],
        end_ns=end[order],
        stream=stream[order],
        is_awaited=is_awaited[order],
        is_to_host=is_to_host[order],
        is_copy=is_copy[order],
    )


def _is_awaited(trace: Trace, rows: _Integers, call: _Integers, is_to_host: _Mask) -> _Mask:
    """Return bool[n]: for which copies their call waited.

    Of those to the device the driver waits for all but small ones from pageable memory: most of such a copy is over
    when its call returns. A copy of a few microseconds may as well be over by then.
    """
    events = trace.events
    inside_ns, duration_ns = events.end_ns[call] - events.begin_ns[rows], events.duration_ns[rows]
    is_over = (np.minimum(inside_ns, duration_ns) > _ORDINARY_NS) & (2 * inside_ns > duration_ns)
    into_pageable = is_to_host & trace.named(_PAGEABLE)[events.name[rows]]
    return np.asarray(is_over | into_pageable | trace.named(SYNC)[events.name[call]])


class _Waits(msgspec.Struct, frozen=True, kw_only=True):
    """When the host waited for a device.

    Attributes:
        begin_ns, end_ns: int64[m].
        copy: int64[m], the copy that it was for, index into _Launched; -1: for all that was launched before.
        can_go: bool[m], whether the script can leave it out.
    """

    begin_ns: _Integers
    end_ns: _Integers
    copy: _Integers
    can_go: _Mask


def _waits(trace: Trace, training_thread: int, launched: _Launched, begin_ns: int, end_ns: int) -> _Waits:
    """Return the waits of the threads that launch.

    What the training thread waits for to have it on the host can be left out, and where it asks to wait for all, but
    not in a collective. Not waits for copies to the device, which need another kind of memory, nor those that an
    operator without a copy or an event asks for.
    """
    events = trace.events
    threads = np.unique(np.append(events.thread[launched.call[launched.call != UNKNOWN]], training_thread))
    calls = trace.rows(Kind.RUNTIME)
    calls = calls[trace.named(SYNC)[events.name[calls]] & np.isin(events.thread[calls], threads)]
    calls = calls[~np.isin(calls, launched.call)]
    awaited = np.flatnonzero(launched.is_awaited)
    rows = np.concatenate((calls, launched.call[awaited]))
    copy = np.concatenate((_copies_before(trace, calls, launched), awaited))
    is_used = (events.begin_ns[rows] >= begin_ns) & (events.end_ns[rows] <= end_ns)
    rows, copy = rows[is_used], copy[is_used]
    thread, at_ns = events.thread[rows], events.begin_ns[rows]
    is_script = ~is_inside(events, _operators(trace), thread, at_ns) & ~trace.named(_EVENT)[events.name[rows]]
    can_go = np.where(copy == -1, is_script, np.append(launched.is_to_host, False)[copy])
    can_go &= (thread == training_thread) & ~is_inside(events, host_rows(trace, marks.COMM_CALL), thread, at_ns)
    return _Waits(begin_ns=at_ns, end_ns=events.end_ns[rows], copy=copy, can_go=can_go)


def _operators(trace: Trace) -> _Integers:
    rows = trace.rows(Kind.CPU_OP)
    return rows[~trace.named(marks.OF_LOOP)[trace.events.name[rows]]]


def _copies_before(trace: Trace, calls: _Integers, launched: _Launched) -> _Integers:
    """Return int64[m]: which copy each call waits for: its thread's last launch, by the same operator; -1: none."""
    events = trace.events
    found = np.full(len(calls), -1, np.int64)
    for thread in np.unique(events.thread[calls]).tolist():
        ours = np.flatnonzero((launched.call != UNKNOWN) & (events.thread[launched.call] == thread))
        ours = ours[np.argsort(events.begin_ns[launched.call[ours]], kind="stable")]
        asked = np.flatnonzero(events.thread[calls] == thread)
        num_before = np.searchsorted(events.begin_ns[launched.call[ours]], events.begin_ns[calls[asked]])
        last = np.concatenate(([-1], ours))[num_before]
        is_copy = (last != -1) & launched.is_copy[last]
        is_copy &= events.external[launched.call[last]] == events.external[calls[asked]]
        found[asked] = np.where(is_copy, last, -1)
    return found


class _Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: when, what it comes after, and how long after each of both it begins."""

    at_ns: int
    index: int
    after: tuple[int, ...]
    after_host_ns: int
    after_device_ns: int
    other_ns: int
    duration_ns: int


class _Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One wait: for what, how long after its end it ended, and whether it can be left out."""

    at_ns: int
    begin_ns: int
    after: tuple[int, ...]
    later_ns: int
    waited: bool
    can_go: bool


class _Script(msgspec.Struct, frozen=True, kw_only=True):
    """What the host does from the begin to the end of the steps.

    Attributes:
        moments: in their order.
        ends_ns: by index, when what was launched ended as observed.
        heirs: by index of what was launched before the steps, the last launch in them on the same stream.
    """

    moments: tuple[_Launch | _Wait, ...]
    ends_ns: tuple[int, ...]
    heirs: dict[int, int]
    begin_ns: int
    end_ns: int

    def is_sound(self) -> bool:
        """Return whether they take as long with all waits as they were observed to take."""
        launched = [moment.index for moment in self.moments if isinstance(moment, _Launch)]
        observed_ns = max([self.end_ns, *(self.ends_ns[index] for index in launched)])
        replayed_ns, _ = self.ends_of_rounds_ns(1.0, without=False)
        return abs(replayed_ns - observed_ns) <= _MOST_OFF * (observed_ns - self.begin_ns)

    def ends_of_rounds_ns(self, host_time: float, *, without: bool) -> tuple[float, float]:
        """Return when host and devices are through with the steps, and when with the same steps right after them.

        In the second round the host is as far ahead as it comes. What it does takes `host_time` of its time; `without`:
        without the waits that can be left out.
        """
        ends = [float(end_ns) for end_ns in self.ends_ns]
        host = self._host_after(float(self.begin_ns), ends, host_time, without=without)
        first = self._through(host, ends)
        for before, last in self.heirs.items():
            ends[before] = ends[last]
        host = self._host_after(host, ends, host_time, without=without)
        return first, self._through(host, ends)

    def _through(self, host: float, ends: list[float]) -> float:
        return max([host, *(ends[moment.index] for moment in self.moments if isinstance(moment, _Launch))])

    def _host_after(self, host: float, ends: list[float], host_time: float, *, without: bool) -> float:
        """Return when the host is through with the steps, and put into `ends` when what it launches ends."""
        seen_ns = self.begin_ns
        for moment in self.moments:
            if isinstance(moment, _Launch):
                host += (moment.at_ns - seen_ns) * host_time
                begin = host + moment.after_host_ns
                for other in moment.after:
                    begin = max(begin, ends[other] + moment.after_device_ns)
                ends[moment.index] = begin + moment.other_ns + moment.duration_ns
            else:
                host += max(0, moment.begin_ns - seen_ns) * host_time
                if not (without and moment.can_go):
                    if not moment.waited:
                        host += (moment.at_ns - max(seen_ns, moment.begin_ns)) * host_time
                    for other in moment.after:
                        host = max(host, ends[other] + moment.later_ns)
            seen_ns = moment.at_ns
        return host + (self.end_ns - seen_ns) * host_time


def _script(launched: _Launched, waits: _Waits, begin_ns: int, end_ns: int) -> _Script:
    moments: list[_Launch | _Wait] = [*_each_launch(launched, begin_ns), *_each_wait(launched, waits)]
    moments.sort(key=lambda moment: (moment.at_ns, isinstance(moment, _Wait)))
    is_before = launched.at_ns < begin_ns
    last = {stream: index for index, stream in enumerate(launched.stream.tolist()) if not is_before[index]}
    before = np.flatnonzero(is_before & np.isin(launched.stream, list(last))).tolist()
    return _Script(
        moments=tuple(moments),
        ends_ns=tuple(launched.end_ns.tolist()),
        heirs={index: last[int(launched.stream[index])] for index in before},
        begin_ns=begin_ns,
        end_ns=end_ns,
    )


def _each_launch(launched: _Launched, since_ns: int) -> list[_Launch]:
    rows = np.flatnonzero(launched.at_ns >= since_ns)
    at, begin, end = launched.at_ns[rows], launched.begin_ns[rows], launched.end_ns[rows]
    after = launched.last_of(rows, begin)
    ready = np.max(_ends(launched, after), axis=1, initial=since_ns)
    is_queued = at < ready
    after_device = _median((begin - ready)[is_queued])
    after_host = _median((begin - at)[~is_queued & ~launched.is_awaited[rows]])
    delay = begin - np.maximum(at + after_host, ready + after_device)
    is_ordinary = delay <= _ORDINARY_NS
    by_host = is_ordinary & (at + after_host >= ready + after_device)
    columns = (
        at,
        rows,
        np.where(by_host, after_host + delay, after_host),
        np.where(is_ordinary & ~by_host, after_device + delay, after_device),
        np.where(is_ordinary, 0, delay),
        end - begin,
    )
    return [
        _Launch(
            at_ns=at_ns,
            index=index,
            after=tuple(other for other in others if other != -1),
            after_host_ns=after_host_ns,
            after_device_ns=after_device_ns,
            other_ns=other_ns,
            duration_ns=duration_ns,
        )
        for at_ns, index, after_host_ns, after_device_ns, other_ns, duration_ns, others in zip(
            *(column.tolist() for column in columns), after.tolist(), strict=True
        )
    ]


def _each_wait(launched: _Launched, waits: _Waits) -> list[_Wait]:
    num_launched = np.searchsorted(launched.at_ns, waits.begin_ns, side="right")
    for_all = launched.last_of(num_launched, waits.end_ns)
    after = np.where(waits.copy[:, None] == -1, for_all, waits.copy[:, None])
    done = np.max(_ends(launched, after), axis=1, initial=np.iinfo(np.int64).min)
    waited = done > waits.begin_ns
    later = np.where(waited, waits.end_ns - done, 0)
    columns = (waits.end_ns, waits.begin_ns, later, waited, waits.can_go)
    return [
        _Wait(
            at_ns=end_ns,
            begin_ns=begin_ns,
            after=tuple({other for other in others if other != -1}),
            later_ns=later_ns,
            waited=has_waited,
            can_go=can_go,
        )
        for end_ns, begin_ns, later_ns, has_waited, can_go, others in zip(
            *(column.tolist() for column in columns), after.tolist(), strict=True
        )
    ]


def _ends(launched: _Launched, index: _Integers) -> _Integers:
    return np.where(index == -1, np.iinfo(np.int64).min, np.append(launched.end_ns, 0)[index])


def _median(values: _Integers) -> int:
    return int(np.median(values)) if len(values) else 0
