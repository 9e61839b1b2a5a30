"""Where the noise of machines and workloads is kept, and how a run finds its own.

One file for each workload on each machine, named after both, in a directory of the user's data, not of a cache: it
takes minutes to measure, and a gate that misses it cannot judge. A CI system that starts from nothing keeps the
directory between its jobs and names it with --calibrations.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from statistics import median

from msgspec.structs import replace

from dpdoctor import rundir, units
from dpdoctor.analysis.base.launch_facts import every
from dpdoctor.errors import BaselineError, OutputError, RunDirectoryError
from dpdoctor.gate import comparable
from dpdoctor.gate.comparable import of_machines
from dpdoctor.gate.files import locked_directory, make_directory
from dpdoctor.gate.model import SCHEMA, Calibration, ModeNoise, Refusal
from dpdoctor.gate.noise import launch_spread
from dpdoctor.gate.recorded import seconds_per_step
from dpdoctor.gate.workload import sharing, workload
from dpdoctor.records import Run
from dpdoctor.spec import Fingerprint, RunSpec

# Launches of one machine and workload differ by less.
OTHER_PACE = 0.25
REMEDY = (
    "Measure the noise of this machine once, with `dpdoctor calibrate` and the same script, options and arguments; "
    "--calibrations names the directory where it is kept"
)


def default_directory() -> Path:
    """Return where calibrations are kept: $XDG_DATA_HOME/dpdoctor/calibrations, below ~/.local/share if unset."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    # Unlike Path.home() this also works for a user without a home.
    root = Path(home) if PurePath(home).is_absolute() else Path(os.path.expanduser("~"), ".local", "share")  # noqa: PTH111
    return root / "dpdoctor" / "calibrations"


def prepare(directory: Path) -> None:
    """Create the directory, and see whether files can be made in it: to measure what is kept there takes minutes.

    Raises:
        OutputError: they cannot.
    """
    make_directory(directory)
    try:
        with locked_directory(directory), tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to {directory}: {error.strerror or error}") from error


def keep(directory: Path, calibration: Calibration) -> tuple[Path, tuple[str, ...]]:
    """Write a calibration; return its file and, where it takes the place of one of another pace, by mode what that was.

    Of an older one the modes stay that this one lacks.

    Raises:
        OutputError: it cannot be written.
    """
    make_directory(directory)
    path = directory / _file_name(calibration.workload, calibration.fingerprint)
    with locked_directory(directory):
        older: Mapping[str, ModeNoise] = {}
        with contextlib.suppress(BaselineError):  # missing, or damaged and so mended
            older = _read(path).modes
        rundir.write_json(path, replace(calibration, modes={**older, **calibration.modes}))
    told = {
        name: other_pace(older[name], [noise.median_s]) for name, noise in calibration.modes.items() if name in older
    }
    return path, tuple(f"in {name} a step {text}" for name, text in told.items() if text is not None)


def find(directory: Path, spec: RunSpec, fingerprint: Fingerprint) -> Calibration | None:
    """Return the calibration of a workload on a machine, of the modes whose devices share batches alike; None: none.

    Raises:
        BaselineError: its file cannot be read, is damaged, or of another schema.
    """
    path = directory / _file_name(str(workload(spec)), fingerprint)
    try:
        there = path.exists()
    except OSError as error:
        raise BaselineError(f"cannot read {path}: {error.strerror or error}") from error
    if not there:
        return None
    found, wanted = _read(path), {mode.name: sharing(mode) for mode in spec.modes}
    modes = {name: noise for name, noise in found.modes.items() if wanted.get(name, noise.sharing) == noise.sharing}
    return replace(found, modes=modes)


def other_pace(noise: ModeNoise, seconds: Sequence[float]) -> str | None:
    """Return that launches take another time for a step than where the noise was measured, by more than OTHER_PACE.

    Machines that a provider calls the same need not be, the code may have changed since, and the script of another
    project may have the same name and options: each has a noise of its own. None: they do not, or there are none.
    """
    if not seconds or abs(math.log(median(seconds) / noise.median_s)) <= math.log1p(OTHER_PACE):
        return None
    return (
        f"takes {units.seconds(median(seconds))}, and took {units.seconds(noise.median_s)} where the noise was measured"
    )


def of_other_pace(found: Calibration, base: Mapping[str, Sequence[float]]) -> Iterator[Refusal]:
    """Yield why modes cannot be judged whose launches, in seconds per step, are not those that were calibrated."""
    for mode, noise in found.modes.items():
        told = other_pace(noise, base.get(mode, ()))
        if told is not None:
            yield _refusal(f"{mode}: calibration", f"A step of base {told}")


def launch_spreads(found: Calibration, run: Run) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return by mode how far launches of a run's workload differ, as RunHeader has it, and why some modes have none."""
    seconds = {
        name: [one for launch in every(launches) if (one := seconds_per_step(launch)) is not None]
        for name, launches in run.modes.items()
    }
    unlike = {name: other_pace(noise, seconds.get(name, ())) for name, noise in found.modes.items()}
    spreads = {name: launch_spread(noise) for name, noise in found.modes.items() if unlike[name] is None}
    return spreads, tuple(f"in {name} a step {told}" for name, told in unlike.items() if told is not None)


def missing(
    directory: Path, spec: RunSpec, fingerprint: Fingerprint, found: Calibration | None, modes: Sequence[str]
) -> tuple[Refusal, ...]:
    """Return why these modes cannot be judged: they were not calibrated here, and what was comes closest to it."""
    if found is not None:
        lacking = [mode for mode in modes if mode not in found.modes]
        there_is = f"There is one of {', '.join(found.modes)} alone" if found.modes else "There is one of other --batch"
        return tuple(_refusal(f"{mode}: calibration", there_is) for mode in lacking)
    return (_refusal("calibration", _closest(directory, str(workload(spec)), fingerprint)),)


def _refusal(field: str, there_is: str) -> Refusal:
    return Refusal(field=field, base=None, head=None, remedy=f"{there_is}. {REMEDY}")


def _closest(directory: Path, of: str, fingerprint: Fingerprint) -> str:
    """Return in words what else was calibrated: this workload on another machine, else another workload here."""
    kept = [(one, _hard_differences(one.fingerprint, fingerprint)) for one in _all(directory)]
    for one, names in kept:
        if one.workload == of:
            return f"There is one of this workload, but with another {', '.join(names)}"
    others = [one.workload for one, names in kept if not names]
    return f"There is one of {others[0]}, and none of {of}" if others else f"There is none of {of}"


def _hard_differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    return [refusal.field for refusal in of_machines(one, other, "time") if refusal.hard]


def _all(directory: Path) -> Iterator[Calibration]:
    """Yield every calibration that can be read."""
    for path in sorted(directory.glob("*.json")):
        with contextlib.suppress(BaselineError):
            yield _read(path)


def _file_name(of: str, fingerprint: Fingerprint) -> str:
    """Return a name for people, and for the machine a digest of all that must be alike."""
    machine = [field.value(fingerprint) for field in comparable.MACHINE if "time" in field.hard]
    digest = hashlib.sha256(rundir.encode([of, machine])).hexdigest()
    stem = re.sub(r"[^\w.-]+", "-", PurePath(of.split(maxsplit=1)[0]).name)[:40]
    return f"{stem}-{digest[:16]}.json"


def _read(path: Path) -> Calibration:
    try:
        found = rundir.read_json(path, Calibration)
    except RunDirectoryError as error:
        raise BaselineError(f"{error.message}. Remove it and calibrate anew: `dpdoctor calibrate`") from error
    if found.schema != SCHEMA:
        raise BaselineError(
            f"{path} has schema {found.schema}; this dpdoctor reads schema {SCHEMA}. Calibrate anew: "
            "`dpdoctor calibrate`"
        )
    modes = {
        name: noise
        if noise.fingerprint is not None
        else replace(noise, created=found.created, fingerprint=found.fingerprint)
        for name, noise in found.modes.items()
    }
    return replace(found, modes=modes)
