"""What two runs must have in common before they may be compared, as tables: name, value, what to do, how hard.

A field's value is text; None: it was not recorded. `hard` names the tiers that refuse where it differs; the other tiers
only say so. Time depends on the whole machine. Counters do not depend on how fast it is, and a change of the batch or
its type is what they are there to find.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from dpdoctor import units
from dpdoctor.gate.evidence.recorded import Recorded, RecordedMode, training_data
from dpdoctor.gate.evidence.workload import workload
from dpdoctor.spec import Fingerprint

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Generic[T]):
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
