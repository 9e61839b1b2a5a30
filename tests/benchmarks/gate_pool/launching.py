"""One launch of samples/mnist_lenet.py as `ddp` on two ranks, and what the pool keeps of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dpdoctor import __version__, rundir
from dpdoctor.analysis.base.launches import NS, every
from dpdoctor.cli import _plan
from dpdoctor.gate.recorded import disturbance, seconds_per_step
from dpdoctor.launch import launcher, machine
from dpdoctor.launch.progress import Silence
from dpdoctor.records import Launch
from dpdoctor.spec import Recording, RunHeader, RunSpec

from .planting import BATCH_SIZE, FAULT, SAMPLES, TRANSFORM
from .pool import STEP_UNIT_S

SCRIPT = SAMPLES / "mnist_lenet.py"
MODE = "ddp"
# A test over steps is given as many as such tests usually have.
STEPS_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the pool keeps of a launch, as pool.Launched has it.

    Attributes:
        fault_s: what the planted fault took of a step; 0 without one.
        disturbed: why a gate would not judge by it.
    """

    step_s: float
    windows: tuple[int, ...]
    steps: tuple[int, ...]
    fault_s: float
    disturbed: str | None


def launch(size: float, rounds: int) -> Kept:
    """Launch the script with a fault of this size.

    Raises:
        RuntimeError: the launch failed; the message says why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "run")
        spec = _spec(size, rounds)
        header = RunHeader(
            dpdoctor=__version__,
            created="",
            command=(),
            spec=spec,
            fingerprint=machine.fingerprint(SCRIPT, machine.package_versions()),
        )
        launcher.create(root, header)
        (record,) = launcher.launch(root, spec, Silence())
        if record.status != "ok":
            raise RuntimeError(f"the launch is {record.status}: {record.reason}")
        run = rundir.read(root)
        (found,) = every(run.modes[MODE])
    step_s = seconds_per_step(found)
    if step_s is None:
        raise RuntimeError("the launch measured nothing")
    windows = found.windows()
    steps = [step.duration_ns * NS for window in windows for step in window.ranks[0].steady]
    return Kept(
        step_s=step_s,
        windows=_in_units(w.seconds_per_step for w in windows),
        steps=_in_units(steps[-STEPS_KEPT:]),
        fault_s=_fault_s(found),
        disturbed=disturbance(found, run.header.fingerprint.cores),
    )


def _fault_s(found: Launch) -> float:
    transforms = [time for rank in found.ranks if rank.record for time in rank.record.transforms]
    per_image = [time.total_ns * NS / time.calls for time in transforms if time.name == TRANSFORM]
    return BATCH_SIZE * fmean(per_image) if per_image else 0.0


def _in_units(seconds: Iterable[float]) -> tuple[int, ...]:
    return tuple(round(duration / STEP_UNIT_S) for duration in seconds)


def _spec(size: float, rounds: int) -> RunSpec:
    return _plan.make_spec(
        _plan.Options(
            script=str(SCRIPT),
            module=None,
            args=("--fault", f"{FAULT}:{size:g}" if size else "none"),
            modes=MODE,
            baseline=False,
            nproc=2,
            batch=None,
            seed=0,
            repeat=1,
            timeout=120.0,
            samples_per_step=None,
            fsdp_wrap=None,
            recording=Recording(rounds=rounds, trace_steps=0, loader_trials=False),
        )
    )
