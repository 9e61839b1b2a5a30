"""A gate of a run that exists against a baseline in a file: whether it is comparable and, if so, worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpdoctor.gate.evidence.comparable import differences, uncounted, unsound
from dpdoctor.gate.evidence.recorded import Recorded, recorded
from dpdoctor.gate.exact import compare
from dpdoctor.gate.keeping import calibration
from dpdoctor.gate.keeping.baselines import Baseline
from dpdoctor.gate.model import Calibration, GateResult, ModeResult, Refusal, Side
from dpdoctor.gate.moved import moved
from dpdoctor.gate.outcome import result
from dpdoctor.gate.statistics.against import against
from dpdoctor.records import Run

NOT_BY_TURNS = (
    "Base was measured on another day: what changed on the machine since then is in the difference. --base and --head "
    "launch two checkouts by turns, and leave it out"
)


def gate(run: Run, baseline: Baseline, name: str, *, asked: float, calibrations: Path) -> GateResult:
    """Return whether a run is slower than a baseline allows, by its launches; `asked` is relative.

    Raises:
        BaselineError: the calibration is damaged.
    """
    base, head = baseline.recorded, recorded(run)
    modes, sides = base.asked_for, _sides(baseline, name, run)
    unlike = differences(base, head, modes, "time")
    unfit = [refusal for mode in modes for refusal in unsound("head", mode, head.modes.get(mode))]
    found = calibration.find(calibrations, run.header.spec, run.header.fingerprint)
    if found is None or not set(modes) <= set(found.modes):
        unfit += calibration.missing(calibrations, run.header.spec, run.header.fingerprint, found, modes)
    remarks = [NOT_BY_TURNS, *_left_alone(base, head)]
    if found is None or _forbid(unfit, unlike):
        return result("baseline", *sides, refusals=(*unfit, *unlike), calibration=found, remarks=remarks[1:])
    judged = {mode: _judged(mode, base, head, found, asked, num_modes=len(modes)) for mode in modes}
    return result("baseline", *sides, modes=judged, refusals=unlike, calibration=found, remarks=remarks)


def gate_exactly(run: Run, baseline: Baseline, name: str) -> GateResult:
    """Return whether a step of a run does more than one of a baseline did, by its counters."""
    base, head = baseline.recorded, recorded(run)
    modes, sides = base.asked_for, _sides(baseline, name, run)
    unlike = differences(base, head, modes, "exact")
    unfit = [refusal for mode in modes for refusal in uncounted("head", mode, head.modes.get(mode))]
    remarks = tuple(_left_alone(base, head))
    if _forbid(unfit, unlike):
        return result("exact", *sides, refusals=(*unfit, *unlike), remarks=remarks)
    found = {
        mode: compare(base.modes[mode].summary, head.modes[mode].summary, base.modes[mode].again) for mode in modes
    }
    return result("exact", *sides, exact=found, refusals=unlike, remarks=remarks)


def _forbid(*refusals: Sequence[Refusal]) -> bool:
    return any(refusal.hard for found in refusals for refusal in found)


def _left_alone(base: Recorded, head: Recorded) -> Iterator[str]:
    """Yield that modes of the run are not judged, as the baseline has none of them."""
    more = [mode for mode in head.asked_for if mode not in base.asked_for]
    if more:
        yield f"Not judged, for the baseline does not have it: {', '.join(more)}"


def _sides(baseline: Baseline, name: str, run: Run) -> tuple[Side, Side]:
    header = baseline.recorded.header
    return (
        Side(label=f"{name}, of {header.created}", command=header.command, fingerprint=header.fingerprint),
        Side(label=str(run.path), command=run.header.command, fingerprint=run.header.fingerprint),
    )


def _judged(
    mode: str, base: Recorded, head: Recorded, found: Calibration, asked: float, *, num_modes: int
) -> ModeResult:
    seconds = base.modes[mode].seconds, head.modes[mode].seconds
    verdict = against(*seconds, found.modes[mode], asked, num_modes=num_modes)
    if verdict.outcome != "regressed":
        return verdict
    return dataclasses.replace(verdict, moved=moved(base.analysis(), head.analysis(), mode))
