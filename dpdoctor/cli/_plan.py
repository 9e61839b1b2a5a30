"""From options to a RunSpec: everything a person can get wrong is said before anything runs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpdoctor import plugins, units
from dpdoctor.errors import ScriptNotFoundError, UsageError
from dpdoctor.launch import machine
from dpdoctor.spec import ModeSpec, Recording, RunSpec
from dpdoctor.worker import modes as mode_files
from dpdoctor.worker.modes._base import Mode

BASELINE = "single"
DEFAULT_CPU_RANKS = 2
# Seconds that starting Python, torch and a small script take; only for the estimate that is printed.
STARTUP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `dpdoctor profile` that make a RunSpec, as click hands them over."""

    script: str | None
    module: str | None
    args: tuple[str, ...]
    modes: str
    baseline: bool
    nproc: int | None
    batch: str | None
    seed: int
    repeat: int
    timeout: float
    samples_per_step: int | None
    fsdp_wrap: tuple[str, ...] | None
    recording: Recording
    allow_writes: bool = False


def known_modes() -> dict[str, Mode]:
    """Return every mode there is, by name."""
    return plugins.collect(mode_files, "MODE")


def make_spec(options: Options) -> RunSpec:
    """Return the run that the options ask for.

    Raises:
        UsageError: something named does not exist, or cannot be had on this machine.
    """
    target = _target(options)
    requested = _requested(options.modes)
    wanted = [BASELINE, *requested] if options.baseline and BASELINE not in requested else requested
    known = known_modes()
    gpus, _ = machine.gpus()
    devices = machine.visible_devices(gpus)
    nproc = _nproc(options.nproc, devices, parallel=any(name != BASELINE for name in wanted))
    return RunSpec(
        target=target,
        is_module=options.module is not None,
        args=options.args,
        cwd=str(Path.cwd()),
        modes=tuple(_mode_spec(name, known[name], nproc, options.batch, has_gpus=bool(devices)) for name in wanted),
        requested_modes=tuple(requested),
        devices=devices[:nproc],
        threads_per_device=max(1, machine.cores() // nproc),
        seed=options.seed,
        repeat=options.repeat,
        timeout_s=options.timeout,
        samples_per_step=options.samples_per_step,
        fsdp_wrap=options.fsdp_wrap,
        allow_writes=options.allow_writes,
        recording=options.recording,
    )


def _target(options: Options) -> str:
    if options.module is not None:
        if _find_module(options.module) is None:
            raise ScriptNotFoundError(f"there is no module {options.module!r} on the import path of this Python")
        return options.module
    if options.script is None:
        raise UsageError("give a SCRIPT, or a module with -m")
    path = Path(options.script)
    if not path.exists():
        raise ScriptNotFoundError(f"there is no script {options.script} in {Path.cwd()}")
    if not path.is_file():
        raise ScriptNotFoundError(f"{options.script} is a directory; give the script itself, or a package with -m")
    return str(path.resolve())


def _find_module(name: str) -> object | None:
    here = str(Path.cwd())
    sys.path.insert(0, here)  # where `python -m` looks first, but the command `dpdoctor` does not
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.remove(here)


def _requested(modes: str) -> list[str]:
    requested = list(dict.fromkeys(name.strip() for name in modes.split(",") if name.strip()))
    known = plugins.names(mode_files)
    unknown = [name for name in requested if name not in known]
    if unknown:
        raise UsageError(f"there is no mode {unknown[0]!r}. Known modes: {', '.join(known)}")
    if not requested:
        raise UsageError(f"--modes names none. Known modes: {', '.join(known)}")
    return requested


def _nproc(asked: int | None, devices: Sequence[str], *, parallel: bool) -> int:
    cores = machine.cores()
    if asked is None:
        return (len(devices) or min(DEFAULT_CPU_RANKS, cores)) if parallel else 1
    if devices and asked > len(devices):
        raise UsageError(
            f"--nproc {asked} asks for more ranks than there are GPUs to use ({len(devices)}). Lower it, or set "
            "CUDA_VISIBLE_DEVICES= (empty) to run on the CPU"
        )
    if not devices and asked > cores:
        raise UsageError(f"--nproc {asked} asks for more ranks than there are cores to use ({cores})")
    return asked


def _mode_spec(name: str, mode: Mode, nproc: int, batch: str | None, *, has_gpus: bool) -> ModeSpec:
    inactive = mode.inactive(has_gpus=has_gpus)
    return ModeSpec(
        name=name,
        world_size=mode.world_size(nproc),
        num_devices=1 if inactive else mode.num_devices(nproc),
        inactive=inactive,
        distributed=mode.distributed,
        batch_rule=batch or mode.batch_rule,
    )


def describe(spec: RunSpec) -> str:
    """Return the plan and the estimate of its time, in one sentence."""
    threads = units.count(spec.threads_per_device, "thread")
    device = "GPU" if spec.devices else f"CPU with {threads} per device"
    modes = ", ".join(f"{m.name} ({units.count(m.world_size, 'process')}, batches {m.batch_rule})" for m in spec.modes)
    launches = len(spec.modes) * spec.repeat
    per_launch = STARTUP_S + (0 if spec.recording.explain else spec.recording.time_budget_s)
    return f"Plan: {modes} on {device}; at most about {units.seconds(launches * per_launch)}, often much less"
