"""What was run, apart from where and from what the code says: calibrations and baselines are of one workload."""

from __future__ import annotations

import os
import shlex

import msgspec

from dpdoctor import redact, units
from dpdoctor.spec import ModeSpec, Recording, RunSpec


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A script with its arguments, and how it was spread and recorded.

    Attributes:
        script: relative to the directory that it ran in, or the name of a module.
        args: redacted, as one line of a shell.
        devices: most that a mode drives; 0: as many as a launcher of the script's own starts ranks for. `on`: GPU or
            CPU.
        steps, rounds, warmup, budget_s: of Recording; what is taken from fewer steps or windows varies more.
    """

    script: str
    args: str
    devices: int
    on: str
    threads_per_device: int
    samples_per_step: int | None
    fsdp_wrap: tuple[str, ...] | None
    warmup: int | None
    steps: int | None
    rounds: int
    budget_s: float = Recording().time_budget_s

    def __str__(self) -> str:
        command = f"{self.script} {self.args}".rstrip()
        threads = units.count(self.threads_per_device, "thread")
        wrapped = "" if self.fsdp_wrap is None else f", FSDP wraps: {', '.join(self.fsdp_wrap)}"
        where = units.count(self.devices, self.on) if self.devices else self.on
        return f"{command} on {where} with {threads} each{wrapped}, {self.recording}"

    @property
    def recording(self) -> str:
        """Return how launches are measured."""
        settings = {
            "samples per step": self.samples_per_step,
            "warm-up steps": self.warmup,
            "steps per window": self.steps,
            "time budget": None if self.budget_s == Recording().time_budget_s else units.seconds(self.budget_s),
        }
        told = "".join(f", {name}: {value}" for name, value in settings.items() if value is not None)
        return f"{units.count(self.rounds, 'window')}{told}"


def workload(spec: RunSpec) -> Workload:
    """Return the workload of a run, alike for two checkouts of a script."""
    return Workload(
        script=script_of(spec),
        args=shlex.join(redact.arguments(spec.args)),
        devices=max((mode.num_devices for mode in spec.modes if not mode.launcher), default=0),
        on="GPU" if spec.devices else "CPU",
        threads_per_device=spec.threads_per_device,
        samples_per_step=spec.samples_per_step,
        fsdp_wrap=spec.fsdp_wrap,
        warmup=spec.recording.warmup,
        steps=spec.recording.steps,
        rounds=spec.recording.rounds,
        budget_s=spec.recording.time_budget_s,
    )


def sharing(mode: ModeSpec) -> str:
    """Return how the devices of a mode share batches and where they are, or what starts ranks that do so themselves."""
    if mode.launcher:
        return f"as `{shlex.join(redact.arguments(mode.launcher))}` starts it"
    return f"{mode.batch_rule} {mode.placement}".rstrip()


def script_of(spec: RunSpec) -> str:
    """Return the script relative to the directory that it ran in, or the name of the module."""
    return spec.target if spec.is_module else os.path.relpath(spec.target, spec.cwd)
