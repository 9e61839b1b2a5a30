"""The traces of one launch: which of their steps count, whether they tell what ranks communicate; found once.

Steps count that all devices hold whole, by number: one that a device lacks would be weighed by the others alone, and a
figure would depend on who adds it up. Where traces do not tell what ranks communicate, nothing is computed from it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.digest import HOST, MOST_SUSPECTS, DeviceDigest, DeviceStep, Digest, kernel_words, nothing_known
from dpdoctor.records import Launch, Run

MAY_HOLD = "may hold communication"
# What the table of kernels also holds: copies, memsets, and a last row for all others.
_NO_KERNEL = ("Memcpy", "Memset", "Copy", "(")


def why_unknown(digests: Sequence[Digest]) -> str | None:
    """Return why it is unknown what the ranks communicate, of the first of them; None: it is known of all."""
    unknown = [(digest.rank, digest.unknown_communication) for digest in digests if digest.unknown_communication]
    if not unknown or len(digests) == 1:
        return unknown[0][1] if unknown else None
    (rank, reason), others = unknown[0], units.count(len(unknown) - 1, "other trace")
    which = "one trace" if rank is None else f"rank {rank}"
    return f"{which}{f' and {others}' if len(unknown) > 1 else ''}: {reason}"


def exposed_ns(step: DeviceStep) -> int:
    """Return the communication of a step beside which nothing computes.

    Raises:
        ValueError: it is unknown, which `why_unknown` says before.
    """
    if step.breakdown.exposed_comm_ns is None:
        raise ValueError("communication is unknown")
    return step.breakdown.exposed_comm_ns


def hidden_ns(step: DeviceStep) -> int:
    """Return the communication of a step beside compute.

    Raises:
        ValueError: it is unknown.
    """
    if step.breakdown.comm_ns is None:
        raise ValueError("communication is unknown")
    return step.breakdown.comm_ns - exposed_ns(step)


def with_unknown(run: Run) -> Run:
    """Return the run with the communication unknown, too, of ranks whose own trace does not say that there are others.

    Traces of which none says how many ranks there are tell it together, by the ranks that they are of.
    """
    return replace(run, modes={name: tuple(map(_of_launch, launches)) for name, launches in run.modes.items()})


def _of_launch(launch: Launch) -> Launch:
    digests = [rank.digest for rank in launch.ranks if rank.digest]
    numbers = {digest.rank for digest in digests} - {None}
    if len(numbers) < 2 or any(digest.world_size is not None for digest in digests):
        return launch
    ranks = tuple(replace(rank, digest=_judged(rank.digest, len(numbers))) for rank in launch.ranks)
    return replace(launch, ranks=ranks)


def _judged(digest: Digest | None, num_ranks: int) -> Digest | None:
    if digest is None or digest.rank is None or digest.unknown_communication or not digest.devices:
        return digest
    budgets = [budget for device in digest.devices for budget in (device.whole, *(s.breakdown for s in device.steps))]
    if digest.calls.begin_ns or any(budget.comm_ns for budget in budgets):
        return digest
    suspects = [*islice(_largest(digest), MOST_SUSPECTS)]
    return digest.without_communication(nothing_known(units.count(num_ranks, "rank"), suspects))


def _largest(digest: Digest) -> Iterator[str]:
    kernels = (kernel for kernel in digest.kernels if kernel.device != HOST)
    for kernel in sorted(kernels, key=lambda kernel: -kernel.total_ns):
        if not kernel.name.startswith(_NO_KERNEL):
            yield kernel_words(kernel.name, kernel.total_ns)


NO_TRACE = "no trace was recorded"
NO_STEPS = "the trace holds no whole step"
NONE_IN_COMMON = "no traced step is whole on every device"
# More devices than these are counted.
MOST_NAMES = 3


class CommonSteps(msgspec.Struct, frozen=True, kw_only=True):
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


def _kept_until(digest: Digest) -> float:
    """Return until when every call of a trace is kept: until the last, where others were dropped."""
    return digest.calls.begin_ns[-1] if digest.calls.num_dropped else math.inf


def _ends_by(step: DeviceStep, at_ns: float) -> bool:
    return step.end_ns <= at_ns


class Traces(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What is kept of the traces of a launch's ranks, in the order of the ranks; empty: none left one."""

    digests: Sequence[Digest]

    def __bool__(self) -> bool:
        """Return whether any rank left a trace."""
        return bool(self.digests)

    @cached_property
    def common(self) -> CommonSteps:
        """Return the steps that every device holds whole: only those are added up."""
        return common_steps(self.digests)

    @cached_property
    def with_calls(self) -> CommonSteps:
        """Return those of the common steps of which every call is kept: of traces with very many, the first ones."""
        common = self.common
        until_ns = [_kept_until(digest) for digest in self.digests for device in digest.devices if device.steps]
        steps = tuple(at_once for at_once in common.steps if all(map(_ends_by, at_once, until_ns)))
        if len(steps) == len(common.steps):
            return common
        left_out = f"of {units.count(len(common.steps), 'traced step')} {units.whole(len(steps))} have all calls kept"
        return CommonSteps(steps=steps, left_out="; ".join(filter(None, (common.left_out, left_out))))

    @cached_property
    def why_unknown(self) -> str | None:
        """Return why it is unknown what the ranks communicate; None: it is known of all."""
        return why_unknown(self.digests)
