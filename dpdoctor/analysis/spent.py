"""Where the time of devices went, added up over what may be added: the steps that count, or else the whole trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpdoctor.analysis.common_steps import CommonSteps
from dpdoctor.analysis.traces import Traces
from dpdoctor.digest import Breakdown, DeviceDigest, DeviceStep

PARTS = ("compute", "exposed_comm", "h2d", "copy", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The time of one or more devices, by its five parts.

    Attributes:
        parts_ns: by PARTS; they add up to total_ns. Where communication is unknown exposed_comm is missing, and compute
            may hold it.
        comm_ns: None: unknown.
        idle_by, phases_ns: as in DeviceStep.
        num_steps: over all devices; 0: these are whole traces.
    """

    parts_ns: Mapping[str, int]
    comm_ns: int | None
    idle_by: Mapping[str, int]
    phases_ns: Mapping[str, int]
    num_steps: int

    @property
    def total_ns(self) -> int:
        """The length of it all."""
        return sum(self.parts_ns.values())

    @property
    def overlap_ratio(self) -> float | None:
        """Communication beside compute, of all communication; None without any."""
        return 1 - self.parts_ns["exposed_comm"] / self.comm_ns if self.comm_ns else None

    @property
    def knows_communication(self) -> bool:
        """Whether it is known what all of the devices communicated."""
        return self.comm_ns is not None

    def without_communication(self) -> Spent:
        """Return the same time where communication is unknown: see Breakdown."""
        others = {part: time_ns for part, time_ns in self.parts_ns.items() if part != "exposed_comm"}
        others["compute"] += self.parts_ns.get("exposed_comm", 0)
        return replace(self, parts_ns=others, comm_ns=None)

    def ratio(self, part: str) -> float:
        """Return the share of one of the parts in `parts_ns`."""
        return self.parts_ns[part] / self.total_ns


def spent(devices: Sequence[DeviceDigest], common: CommonSteps) -> Spent:
    """Return where the time of these devices went: in their steps that count if there are any, else in all of it.

    Raises:
        ValueError: nothing took any time.
    """
    steps = [step for device in devices for step in common.of(device)]
    found = of_steps(steps) if steps else _of_whole(devices)
    if not found.total_ns:
        raise ValueError("nothing took any time on these devices")
    return found


def together(traces: Traces) -> Spent:
    """Return where the time of all devices of these traces went; communication is known of all of them or unknown.

    Raises:
        ValueError: nothing took any time.
    """
    found = spent([device for digest in traces.digests for device in digest.devices], traces.common)
    return found if traces.why_unknown is None else found.without_communication()


def of_steps(steps: Sequence[DeviceStep]) -> Spent:
    """Return where the time of these steps went, of any devices."""
    parts_ns, comm_ns = _added([step.breakdown for step in steps])
    return Spent(
        parts_ns=parts_ns,
        comm_ns=comm_ns,
        idle_by=_sum(step.idle_by for step in steps),
        phases_ns=_sum(step.phases_ns for step in steps),
        num_steps=len(steps),
    )


def _of_whole(devices: Sequence[DeviceDigest]) -> Spent:
    parts_ns, comm_ns = _added([device.whole for device in devices])
    idle_by = _sum(device.idle_by for device in devices)
    return Spent(parts_ns=parts_ns, comm_ns=comm_ns, idle_by=idle_by, phases_ns={}, num_steps=0)


def _added(breakdowns: Sequence[Breakdown]) -> tuple[dict[str, int], int | None]:
    """Return the parts and all communication, which is known of all of them or unknown."""
    comm_ns = [breakdown.comm_ns for breakdown in breakdowns if breakdown.comm_ns is not None]
    if len(comm_ns) == len(breakdowns):
        return _sum(map(parts, breakdowns)), sum(comm_ns)
    return _sum(parts(breakdown.without_communication()) for breakdown in breakdowns), None


def parts(breakdown: Breakdown) -> dict[str, int]:
    """Return the five parts of a breakdown by name; exposed_comm is missing where it is unknown."""
    found = {
        "compute": breakdown.compute_ns,
        "exposed_comm": breakdown.exposed_comm_ns,
        "h2d": breakdown.h2d_ns,
        "copy": breakdown.copy_ns,
        "idle": breakdown.idle_ns,
    }
    return {part: time_ns for part, time_ns in found.items() if time_ns is not None}


def _sum(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for time in times:
        total.update(time)
    return dict(total)
