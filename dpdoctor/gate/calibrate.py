"""Measures the noise of this machine and a workload: pairs of launches of the same code, launched as a gate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dpdoctor.gate.alternate import Alternated, Decide, alternate, most_launches
from dpdoctor.gate.model import Calibration
from dpdoctor.gate.noise import mode_noise
from dpdoctor.gate.sides import Checkout, Launches
from dpdoctor.gate.workload import sharing, workload
from dpdoctor.launch.interruption import heeding
from dpdoctor.launch.progress import Progress
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
