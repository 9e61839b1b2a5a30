"""The noise of a machine and a workload: measured by pairs of launches of the same code, kept, and found again.

The pairs (A/A) are launched as a gate does. There is one file for each workload on each machine, named after both, in a
directory of the user's data, not of a cache: it takes minutes to measure, and a gate that misses it cannot judge. A CI
system that starts from nothing keeps the directory between its jobs and names it with --calibrations.
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

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor import rundir, units
from dpdoctor.analysis.base.launches import every
from dpdoctor.analysis.base.stats import MAD_TO_SIGMA
from dpdoctor.errors import BaselineError, OutputError, RunDirectoryError
from dpdoctor.gate import comparable
from dpdoctor.gate.alternate import Alternated, Decide, alternate, most_launches
from dpdoctor.gate.comparable import of_machines
from dpdoctor.gate.files import locked_directory, make_directory
from dpdoctor.gate.model import SCHEMA, Calibration, ModeNoise, Pair, Refusal
from dpdoctor.gate.recorded import seconds_per_step, sharing, workload
from dpdoctor.gate.sides import Checkout, Launches
from dpdoctor.launch.interruption import heeding
from dpdoctor.launch.progress import Progress
from dpdoctor.records import Run
from dpdoctor.spec import Fingerprint, RunSpec
from dpdoctor.version import __version__


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """Whether as many pairs count as were asked for; there is nothing else to judge."""

    final: bool


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; `calibration` is None where it was refused or interrupted, and `launched` says why."""

    calibration: Calibration | None
    launched: Alternated[Enough]


def calibrate(root: Path, checkout: Checkout, *, pairs: int, progress: Progress) -> Calibrated:
    """Return the noise that A/A pairs show; `root` is the directory of their launches.

    Raises:
        ValueError: fewer pairs than noise can be told from.
        OutputError: the directory of a launch cannot be written.
    """
    launches = Launches(root, {"base": checkout, "head": checkout}, progress, most=most_launches(pairs))
    with heeding():
        done = alternate(launches, _until(pairs), modes=checkout.modes, most_pairs=pairs, same_code=True)
    if done.interrupted or done.refusals:
        return Calibrated(calibration=None, launched=done)
    calibration = Calibration(
        created=checkout.header.created,
        dpdoctor=__version__,
        workload=str(workload(checkout.spec)),
        fingerprint=checkout.header.fingerprint,
        modes={
            mode.name: replace(
                mode_noise(done.pairs[mode.name]),
                sharing=sharing(mode),
                created=checkout.header.created,
                fingerprint=checkout.header.fingerprint,
            )
            for mode in checkout.spec.modes
        },
    )
    return Calibrated(calibration=calibration, launched=done)


def _until(pairs: int) -> Decide[Enough]:
    def decide(log_ratios: Mapping[str, Sequence[float]], _: Mapping[str, Enough]) -> Mapping[str, Enough]:
        return {mode: Enough(final=len(ratios) >= pairs) for mode, ratios in log_ratios.items()}

    return decide


# Fewer say too little of how far launches spread: the spread of ten is itself known to a third.
LEAST_PAIRS = 10
# What a median absolute deviation is worth, next to a standard deviation of as many values (Rousseeuw and Croux,
# Alternatives to the Median Absolute Deviation, 1993).
MAD_EFFICIENCY = 0.37


def mode_noise(pairs: Sequence[Pair]) -> ModeNoise:
    """Return the noise that A/A pairs show; those that were replaced do not count.

    Raises:
        ValueError: fewer than LEAST_PAIRS count.
    """
    counted = [
        (pair.order, found, shown)
        for pair in pairs
        if pair.replaced is None
        and (found := _logs(pair.base_s, pair.head_s)) is not None
        and (shown := _logs(pair.base_shown_s, pair.head_shown_s)) is not None
    ]
    if len(counted) < LEAST_PAIRS:
        raise ValueError(f"{len(counted)} pairs count; noise is told from {LEAST_PAIRS} at least")
    ratios = [head - base for _, (base, head), _ in counted]
    launches = [value for order, both, _ in counted for value in (both if order == "AB" else both[::-1])]
    shown_launches = [value for _, _, both in counted for value in both]
    return ModeNoise(
        run_cv=spread(launches, float(np.median(launches))),
        shown_cv=spread(shown_launches, float(np.median(shown_launches))),
        # Both sides of an A/A pair are the same, so its log ratio spreads about 0.
        pair_sd=spread(ratios, 0.0),
        shown_pair_sd=spread([head - base for _, _, (base, head) in counted], 0.0),
        autocorrelation=autocorrelation(launches),
        median_s=math.exp(float(np.median(launches))),
        log_ratios=tuple(ratios),
        log_seconds=tuple(launches),
    )


def _logs(base_s: float | None, head_s: float | None) -> tuple[float, float] | None:
    """Return the logs of both sides' seconds per step; None: one of them was not measured."""
    return None if base_s is None or head_s is None else (math.log(base_s), math.log(head_s))


def spread(values: Sequence[float] | NDArray[np.float64], centre: float) -> float:
    """Return a standard deviation about `centre` that a few outliers do not change: 1.4826 times the median distance.

    The plain one where half of the values are at the centre, and the median distance would say that nothing varies.
    """
    away = np.abs(np.asarray(values) - centre)
    return MAD_TO_SIGMA * float(np.median(away)) or float(np.sqrt(np.mean(away**2)))


def degrees_of_freedom(noise: ModeNoise) -> float:
    """Return those of `run_cv`, for Student's t."""
    return max(1.0, MAD_EFFICIENCY * (len(noise.log_seconds) - 1))


def launch_spread(noise: ModeNoise) -> float:
    """Return the half width of the 95% interval in which launches lie, relative to what a report shows of a launch."""
    from scipy import stats

    return math.expm1(float(stats.t.ppf(0.975, degrees_of_freedom(noise))) * noise.shown_cv)


def autocorrelation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next (lag 1); 0 where nothing varies."""
    away = np.asarray(values) - np.mean(values)
    total = float(away @ away)
    return float(away[:-1] @ away[1:]) / total if total > 0 else 0.0


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
