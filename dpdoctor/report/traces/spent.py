"""Where the time of devices went, added up over what may be added: whole steps, or else the whole trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpdoctor.digest import Budget, DeviceDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The time of one or more devices, by its five parts.

    Attributes:
        parts_ns: compute, exposed_comm, h2d, copy, idle; they add up to total_ns.
        idle_by, phases_ns: as in DeviceStep.
        num_steps: over all devices; 0: these are whole traces.
    """

    parts_ns: Mapping[str, int]
    comm_ns: int
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

    def ratio(self, part: str) -> float:
        """Return the share of one of the five parts."""
        return self.parts_ns[part] / self.total_ns


def spent(devices: Sequence[DeviceDigest]) -> Spent:
    """Return where the time of these devices went: of those with whole steps if there are any, else of all.

    Raises:
        ValueError: nothing took any time.
    """
    steps = [step for device in devices for step in device.steps]
    found = Spent(
        parts_ns=_sum(map(parts, [step.budget for step in steps] or [device.whole for device in devices])),
        comm_ns=sum(step.budget.comm_ns for step in steps) if steps else sum(d.whole.comm_ns for d in devices),
        idle_by=_sum([step.idle_by for step in steps] or [device.idle_by for device in devices]),
        phases_ns=_sum(step.phases_ns for step in steps),
        num_steps=len(steps),
    )
    if not found.total_ns:
        raise ValueError("nothing took any time on these devices")
    return found


def parts(budget: Budget) -> dict[str, int]:
    """Return the five parts of a budget by name."""
    return {
        "compute": budget.compute_ns,
        "exposed_comm": budget.exposed_comm_ns,
        "h2d": budget.h2d_ns,
        "copy": budget.copy_ns,
        "idle": budget.idle_ns,
    }


def _sum(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for time in times:
        total.update(time)
    return dict(total)
