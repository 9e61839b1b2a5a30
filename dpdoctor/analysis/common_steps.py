"""Which traced steps count, where several devices were traced: those that all of them hold whole, by number.

A step that one device lacks would be weighed by the others alone, and a figure would depend on who adds it up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpdoctor import units
from dpdoctor.digest import DeviceDigest, DeviceStep, Digest

NO_TRACE = "no rank left a trace"
NO_STEPS = "the trace holds no whole step"
NONE_IN_COMMON = "no traced step is whole on every device"
# More devices than these are counted.
MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSteps:
    """The traced steps that count.

    Attributes:
        steps: one entry for each, by number; in it one per device that holds any whole step.
        left_out: which steps and devices do not count, and why, in a clause; empty: none. Without `steps`: why there
            are none.
    """

    steps: tuple[tuple[DeviceStep, ...], ...]
    left_out: str = ""

    def of(self, device: DeviceDigest) -> list[DeviceStep]:
        """Return the steps of one of the devices that count."""
        numbers = {at_once[0].step for at_once in self.steps}
        return [step for step in device.steps if step.step in numbers]


def common_steps(digests: Sequence[Digest]) -> CommonSteps:
    """Return the steps that every device of these traces holds whole, but for devices that hold none."""
    devices = [(_name(digest, device), device.steps) for digest in digests for device in digest.devices]
    held = [(name, _by_number(steps)) for name, steps in devices if steps]
    if not held:
        return CommonSteps(steps=(), left_out=NO_STEPS if digests else NO_TRACE)
    # Of a number that one device has once and another twice nobody knows which is which.
    every: set[int] = set().union(*(steps for _, steps in held))
    times = {number: max(len(steps.get(number, ())) for _, steps in held) for number in sorted(every)}
    lacking = [name for name, of in held if any(len(of.get(number, ())) < most for number, most in times.items())]
    numbers = [number for number, most in times.items() if all(len(of.get(number, ())) == most for _, of in held)]
    if not numbers:
        return CommonSteps(steps=(), left_out=NONE_IN_COMMON)
    without = [name for name, steps in devices if not steps]
    return CommonSteps(
        steps=tuple(at_once for number in numbers for at_once in zip(*(of[number] for _, of in held), strict=True)),
        left_out="; ".join(_left_out(len(times), len(numbers), lacking, without)),
    )


def _by_number(steps: Sequence[DeviceStep]) -> dict[int, list[DeviceStep]]:
    found: defaultdict[int, list[DeviceStep]] = defaultdict(list)
    for step in steps:
        found[step.step].append(step)
    return dict(found)


def _left_out(num_traced: int, num_common: int, lacking: Sequence[str], without: Sequence[str]) -> Iterator[str]:
    if lacking:
        yield (
            f"of {units.count(num_traced, 'traced step')} the {units.whole(num_common)} count that every device holds "
            f"whole: {_names(lacking)} did not hold all"
        )
    if without:
        yield f"not counted, for lack of a whole step: {_names(without)}"


def _names(devices: Sequence[str]) -> str:
    return ", ".join(devices) if len(devices) <= MOST_NAMES else units.count(len(devices), "device")


def _name(digest: Digest, device: DeviceDigest) -> str:
    rank = digest.source if digest.rank is None else f"rank {digest.rank}"
    return rank if len(digest.devices) == 1 else f"GPU {device.index} of {rank}"
