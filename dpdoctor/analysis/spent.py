"""Where the time of devices went, added up over what may be added: the steps that count, or else the whole trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpdoctor.analysis.common_steps import CommonSteps
from dpdoctor.digest import Budget, DeviceDigest, DeviceStep

PARTS = ("compute", "exposed_comm", "h2d", "copy", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The time of one or more devices, by its five parts.

    Attributes:
        parts_ns: by PARTS; they add up to total_ns.
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


def of_steps(steps: Sequence[DeviceStep]) -> Spent:
    """Return where the time of these steps went, of any devices."""
    return Spent(
        parts_ns=_sum(parts(step.budget) for step in steps),
        comm_ns=sum(step.budget.comm_ns for step in steps),
        idle_by=_sum(step.idle_by for step in steps),
        phases_ns=_sum(step.phases_ns for step in steps),
        num_steps=len(steps),
    )


def _of_whole(devices: Sequence[DeviceDigest]) -> Spent:
    return Spent(
        parts_ns=_sum(parts(device.whole) for device in devices),
        comm_ns=sum(device.whole.comm_ns for device in devices),
        idle_by=_sum(device.idle_by for device in devices),
        phases_ns={},
        num_steps=0,
    )


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
