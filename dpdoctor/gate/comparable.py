"""Whether two runs may be compared at all: what is not alike, what is no evidence, each with the way out.

A gate that cannot compare refuses, with the field and both values: it never passes, and never blames the code. What
must be alike is a table of fields: `hard` names the tiers that refuse where one differs; the other tiers only say so.
Time depends on the whole machine. Counters do not depend on how fast it is, and a change of the batch or its type is
what they are there to find.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.gate.model import LONGER_WARMUP, UNDISTURBED, Refusal, SideName
from dpdoctor.gate.recorded import LEAST_STEPS, Conditions, Recorded, RecordedMode, training_data, workload
from dpdoctor.spec import BASELINE, Fingerprint

Tier = Literal["time", "exact"]
T = TypeVar("T")
BOTH: tuple[Tier, ...] = ("time", "exact")
TIME: tuple[Tier, ...] = ("time",)
EXACT: tuple[Tier, ...] = ("exact",)

_THERE = "Run both on the same kind of machine"
_INSTALL = "Install the version that the other was run with"
_ALIKE = "Give both runs the same options"
_SAME_STEP = "Profile both with the same --warmup, such as 5, so that the same step of the script is counted"
_ANEW = ", or take the new one as it is: `dpdoctor baseline accept --reason`"


class Field(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One thing that two runs have in common or not."""

    name: str
    value: Callable[[T], str | None]
    remedy: str
    hard: tuple[Tier, ...] = ()


def _gpus(machine: Fingerprint) -> str:
    names = Counter(gpu.name for gpu in machine.gpus)
    return ", ".join(f"{units.whole(number)} x {name}" for name, number in sorted(names.items())) or "none"


def _minor(machine: Fingerprint) -> str:
    return ".".join(machine.python.split(".")[:2])


def _package(name: str) -> Callable[[Fingerprint], str | None]:
    return lambda machine: machine.packages.get(name)


MACHINE: tuple[Field[Fingerprint], ...] = (
    Field(name="gpus", value=_gpus, remedy=_THERE, hard=BOTH),
    Field(name="driver", value=lambda machine: machine.driver, remedy=_THERE, hard=TIME),
    Field(name="cpu", value=lambda machine: machine.cpu, remedy=_THERE, hard=TIME),
    Field(name="cores", value=lambda machine: units.whole(machine.cores), remedy=_THERE, hard=TIME),
    Field(name="python", value=_minor, remedy=_INSTALL, hard=TIME),
    Field(name="torch", value=_package("torch"), remedy=_INSTALL, hard=BOTH),
    Field(name="nccl (CUDA 12)", value=_package("nvidia-nccl-cu12"), remedy=_INSTALL, hard=TIME),
    Field(name="nccl (CUDA 13)", value=_package("nvidia-nccl-cu13"), remedy=_INSTALL, hard=TIME),
    Field(name="triton", value=_package("triton"), remedy=_INSTALL, hard=TIME),
    Field(name="torchvision", value=_package("torchvision"), remedy=_INSTALL),
    Field(name="numpy", value=_package("numpy"), remedy=_INSTALL),
    Field(name="python release", value=lambda machine: machine.python, remedy=_INSTALL),
    Field(name="host", value=lambda machine: machine.host, remedy="Hosts of the same kind differ, too: calibrate both"),
    Field(name="system", value=lambda machine: machine.system, remedy=_THERE),
    Field(name="memory", value=lambda machine: units.size(machine.memory_bytes), remedy=_THERE),
    Field(name="governor", value=lambda machine: machine.governor, remedy="Set the same frequency governor"),
)


def _warmup(run: Recorded) -> str:
    """Return how many steps came before the counted one; until they were steady, that is as chance will have it."""
    steps = run.header.spec.recording.warmup
    return f"until steady, by {run.header.created}" if steps is None else units.count(steps, "step")


RUN: tuple[Field[Recorded], ...] = (
    Field(name="script", value=lambda run: workload(run.header.spec).script, remedy=_ALIKE, hard=BOTH),
    Field(name="arguments", value=lambda run: workload(run.header.spec).args, remedy=f"{_ALIKE}{_ANEW}", hard=BOTH),
    Field(
        name="threads_per_device",
        value=lambda run: units.whole(run.header.spec.threads_per_device),
        remedy=_ALIKE,
        hard=TIME,
    ),
    Field(
        name="fsdp_wrap", value=lambda run: ", ".join(run.header.spec.fsdp_wrap or ("auto",)), remedy=_ALIKE, hard=BOTH
    ),
    Field(name="recording", value=lambda run: workload(run.header.spec).recording, remedy=_ALIKE, hard=TIME),
    Field(name="warmup", value=_warmup, remedy=_SAME_STEP, hard=EXACT),
    Field(name="seed", value=lambda run: units.whole(run.header.spec.seed), remedy=_ALIKE, hard=EXACT),
    Field(name="seed_per_rank", value=lambda run: str(run.header.spec.seed_per_rank), remedy=_ALIKE, hard=BOTH),
    Field(name="allow_writes", value=lambda run: str(run.header.spec.allow_writes), remedy=_ALIKE),
    Field(name="ablations", value=lambda run: ", ".join(run.header.spec.recording.ablations) or "none", remedy=_ALIKE),
    Field(name="dpdoctor", value=lambda run: run.header.dpdoctor, remedy=_INSTALL),
)


def _device(mode: RecordedMode) -> str | None:
    return ", ".join(sorted({rank.device_type for rank in mode.summary.ranks})) or None


def _dtypes(mode: RecordedMode) -> str | None:
    if mode.summary.counters is None:
        return None
    return ", ".join(tensor.dtype for tensor in mode.summary.counters.inputs) or None


def _batch(mode: RecordedMode) -> str | None:
    return None if mode.batch is None else units.count(mode.batch, "sample")


def _steady_steps(mode: RecordedMode) -> str:
    held = "with" if mode.summary.edges_are_steady else "without"
    return f"{held} those in which an epoch began or an evaluation ran"


def _launcher(mode: RecordedMode) -> str | None:
    return shlex.join(mode.summary.native.launcher) if mode.summary.native else None


MODE: tuple[Field[RecordedMode], ...] = (
    Field(name="world_size", value=lambda mode: units.whole(mode.summary.world_size), remedy=_ALIKE, hard=BOTH),
    Field(name="devices", value=lambda mode: units.whole(mode.summary.num_devices), remedy=_ALIKE, hard=BOTH),
    Field(name="placement", value=lambda mode: mode.summary.placement or None, remedy=_ALIKE, hard=BOTH),
    Field(name="launcher", value=_launcher, remedy=_ALIKE, hard=TIME),
    Field(name="batch rule", value=lambda mode: mode.summary.batch.rule, remedy=_ALIKE, hard=BOTH),
    Field(name="backend", value=lambda mode: mode.summary.backend, remedy=_ALIKE, hard=BOTH),
    Field(name="device", value=_device, remedy=_THERE, hard=BOTH),
    Field(
        name="global batch",
        value=_batch,
        remedy=f"A step of another batch is other work; compare samples per second, as `dpdoctor compare` does{_ANEW}",
        hard=TIME,
    ),
    Field(
        name="steady steps",
        value=_steady_steps,
        remedy="Leave those with edges out of both: longer epochs, or fewer --steps",
        hard=TIME,
    ),
    Field(name="input dtype", value=_dtypes, remedy=f"Train on the same type{_ANEW}", hard=TIME),
    Field(
        name="compile",
        value=lambda mode: "torch.compile" if mode.compiled else "eager",
        remedy=f"Compile both or none{_ANEW}",
        hard=TIME,
    ),
    Field(
        name="dataset",
        value=lambda mode: training_data(mode.summary.conversion),
        remedy=f"Train on the same data{_ANEW}",
        hard=TIME,
    ),
)
# What must be alike for the sides of a pair, which share machine, options and moment: a step must be the same work.
OF_A_PAIR = tuple(field for field in MODE if field.name in {"global batch", "device", "backend"})


def differing(fields: tuple[Field[T], ...], base: T, head: T) -> Iterator[tuple[Field[T], str | None, str | None]]:
    """Yield each field in which base and head differ, with their values."""
    for field in fields:
        before, after = field.value(base), field.value(head)
        if before != after:
            yield field, before, after


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
        *_refusals(RUN, base, head, tier),
        *(refusal for mode in modes for refusal in _of_modes(mode, base.modes, head.modes, tier)),
    ]
    return tuple(sorted(found, key=lambda refusal: not refusal.hard))


def of_machines(base: Fingerprint, head: Fingerprint, tier: Tier) -> tuple[Refusal, ...]:
    """Return in what two machines differ."""
    return tuple(_refusals(MACHINE, base, head, tier))


def of_a_pair(mode: str, base: RecordedMode, head: RecordedMode) -> tuple[Refusal, ...]:
    """Return why a step of head is not the same work as one of base, both launched by one gate."""
    return tuple(_named(mode, refusal) for refusal in _refusals(OF_A_PAIR, base, head, "time"))


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
        remedy = f"Run again {UNDISTURBED}"
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
        yield from (_named(name, found) for found in _refusals(MODE, base[name], head[name], tier))
        yield from (_named(name, found) for found in _of_conditions(base[name].conditions, head[name].conditions))
        yield from (_named(name, found) for found in _unsteady(base[name], head[name]))
        yield from (
            _named(name, found)
            for found in _of_cores(base[name].summary.core_benchmark, head[name].summary.core_benchmark)
        )


def _refusals(table: tuple[Field[T], ...], base: T, head: T, tier: Tier) -> Iterator[Refusal]:
    for field, before, after in differing(table, base, head):
        yield Refusal(field=field.name, base=before, head=after, remedy=field.remedy, hard=tier in field.hard)


def _named(mode: str, refusal: Refusal) -> Refusal:
    return replace(refusal, field=f"{mode}: {refusal.field}")


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
        yield _soft("warm-up", before, after, f"Give {LONGER_WARMUP}")


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
