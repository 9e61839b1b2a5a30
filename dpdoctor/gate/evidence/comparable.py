"""Whether two runs may be compared at all: what is not alike, what is no evidence, each with the way out.

A gate that cannot compare refuses, with the field and both values: it never passes, and never blames the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.analysis.withheld import why_withheld
from dpdoctor.gate.evidence import fields
from dpdoctor.gate.evidence.conditions import Conditions
from dpdoctor.gate.evidence.fields import Field, Tier
from dpdoctor.gate.evidence.measured import LEAST_STEPS
from dpdoctor.gate.evidence.recorded import Recorded, RecordedMode
from dpdoctor.gate.model import Refusal, SideName
from dpdoctor.spec import BASELINE, Fingerprint

T = TypeVar("T")

# Share of the time with some task waiting for a core by which two runs may differ before it is said.
PRESSURE = 0.05
# The same of the GPUs' clock, relative.
CLOCK = 0.05
# The same of the time that one piece of arithmetic takes a core.
CORE_PACE = 0.08
# What stands for the side that a refusal is not about: of the other nothing else is known.
NOT_CONCERNED = "not concerned"


def differences(base: Recorded, head: Recorded, modes: Sequence[str], tier: Tier) -> tuple[Refusal, ...]:
    """Return in what two runs are not alike, the hard ones first; `modes` are those that both were asked for."""
    found = [
        *of_machines(base.header.fingerprint, head.header.fingerprint, tier),
        *_refusals(fields.RUN, base, head, tier),
        *(refusal for mode in modes for refusal in _of_modes(mode, base.modes, head.modes, tier)),
    ]
    return tuple(sorted(found, key=lambda refusal: not refusal.hard))


def of_machines(base: Fingerprint, head: Fingerprint, tier: Tier) -> tuple[Refusal, ...]:
    """Return in what two machines differ."""
    return tuple(_refusals(fields.MACHINE, base, head, tier))


def of_a_pair(mode: str, base: RecordedMode, head: RecordedMode) -> tuple[Refusal, ...]:
    """Return why a step of head is not the same work as one of base, both launched by one gate."""
    return tuple(_named(mode, refusal) for refusal in _refusals(fields.OF_A_PAIR, base, head, "time"))


def uncounted(side: SideName, name: str, mode: RecordedMode | None) -> tuple[Refusal, ...]:
    """Return why the counters of a mode of one run are no evidence."""
    if mode is None:
        return (_about(side, name, "mode", "it was not run", f"Profile it with --modes {name}"),)
    withheld = why_withheld(mode.summary) or _not_run(mode)
    return () if withheld is None else (_about(side, name, "mode", withheld, _remedy(name)),)


def unsound(side: SideName, name: str, mode: RecordedMode | None) -> tuple[Refusal, ...]:
    """Return why the times of a mode of one run are no evidence."""
    if mode is None or uncounted(side, name, mode):
        return uncounted(side, name, mode)
    if mode.steps < LEAST_STEPS:
        steps = units.count(mode.steps, "step")
        most = units.whole(LEAST_STEPS)
        return (
            _about(side, name, "steps", f"{steps} measured", f"Measure {most} at least: let the script train longer"),
        )
    if mode.disturbed:
        remedy = "Run again where nothing else runs and nothing is throttled"
        return tuple(_about(side, name, "disturbed", reason, remedy) for reason in mode.disturbed)
    return ()


def _remedy(mode: str) -> str:
    """Return what to do about a mode that failed."""
    remedy = "Mend what the reason says, then try again"
    if mode == BASELINE:
        return remedy
    return f"{remedy}; where parameters get no gradient, add {BASELINE} to --modes: it tells {mode} which"


def _not_run(mode: RecordedMode) -> str | None:
    status = mode.summary.status
    return None if status == "ok" else f"it is {status}: {mode.summary.reason or 'no reason was recorded'}"


def _about(side: SideName, mode: str, field: str, value: str, remedy: str) -> Refusal:
    base, head = (value, NOT_CONCERNED) if side == "base" else (NOT_CONCERNED, value)
    return Refusal(field=f"{mode}: {field}", base=base, head=head, remedy=remedy)


def _of_modes(
    name: str, base: Mapping[str, RecordedMode], head: Mapping[str, RecordedMode], tier: Tier
) -> Iterator[Refusal]:
    if name in base and name in head:
        yield from (_named(name, found) for found in _refusals(fields.MODE, base[name], head[name], tier))
        yield from (_named(name, found) for found in _of_conditions(base[name].conditions, head[name].conditions))
        yield from (_named(name, found) for found in _unsteady(base[name], head[name]))
        yield from (
            _named(name, found)
            for found in _of_cores(base[name].summary.core_benchmark, head[name].summary.core_benchmark)
        )


def _refusals(table: tuple[Field[T], ...], base: T, head: T, tier: Tier) -> Iterator[Refusal]:
    for field, before, after in fields.differing(table, base, head):
        yield Refusal(field=field.name, base=before, head=after, remedy=field.remedy, hard=tier in field.hard)


def _named(mode: str, refusal: Refusal) -> Refusal:
    return dataclasses.replace(refusal, field=f"{mode}: {refusal.field}")


def _of_conditions(base: Conditions, head: Conditions) -> Iterator[Refusal]:
    """Yield what the machine was like otherwise; it forbids nothing, but may be the reason for a difference."""
    if _apart(base.pressure, head.pressure, PRESSURE):
        remedy = "See what else ran, or how many threads and loader processes there were"
        yield _soft("time with a task waiting for a core", _share(base.pressure), _share(head.pressure), remedy)
    if base.throttled or head.throttled:
        remedy = "Raise the container's CPU quota, or use fewer threads and loader processes"
        yield _soft("throttled quota periods", _number(base.throttled), _number(head.throttled), remedy)
    if _apart(base.sm_clock_mhz, head.sm_clock_mhz, CLOCK * (base.sm_clock_mhz or 0.0)):
        yield _soft("SM clock", _clock(base.sm_clock_mhz), _clock(head.sm_clock_mhz), "Lock the GPUs' clocks")


def _unsteady(base: RecordedMode, head: RecordedMode) -> Iterator[Refusal]:
    """Yield that a side's steps never settled before they were measured."""
    steady = [mode.summary.warmup_steady for mode in (base, head)]
    if False in steady:
        before, after = ("never steady" if found is False else "steady" for found in steady)
        yield _soft("warm-up", before, after, "Give a longer --warmup")


def _of_cores(base: Figure, head: Figure) -> Iterator[Refusal]:
    """Yield that cores were slower on one side, whatever they computed."""
    if _apart(base.value, head.value, CORE_PACE * (base.value or 0.0)):
        remedy = "See what else computes on this machine, or launch both sides by turns with --base and --head"
        yield _soft("the same arithmetic on a core", _seconds(base.value), _seconds(head.value), remedy)


def _soft(field: str, base: str | None, head: str | None, remedy: str) -> Refusal:
    return Refusal(field=field, base=base, head=head, remedy=remedy, hard=False)


def _apart(base: float | None, head: float | None, most: float) -> bool:
    return base is not None and head is not None and abs(head - base) > most


def _share(value: float | None) -> str | None:
    return None if value is None else units.share(value)


def _number(value: int | None) -> str | None:
    return None if value is None else units.whole(value)


def _seconds(value: float | None) -> str | None:
    return None if value is None else units.seconds(value)


def _clock(value: float | None) -> str | None:
    return None if value is None else units.quantity(value, "MHz")
