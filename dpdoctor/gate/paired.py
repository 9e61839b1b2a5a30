"""A gate of two checkouts: paired launches, judged as they come, and what moved where one regressed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.errors import DpDoctorError
from dpdoctor.gate import calibration
from dpdoctor.gate.alternate import Alternated, Decide, alternate, most_launches
from dpdoctor.gate.comparable import of_machines
from dpdoctor.gate.decide import Verdict, by_all_windows, decide_all
from dpdoctor.gate.design import Plan
from dpdoctor.gate.explain import explained, full_launches
from dpdoctor.gate.model import Calibration, GateResult, ModeResult, Pair, SideName, result
from dpdoctor.gate.sides import Checkout, Launches
from dpdoctor.launch.interruption import heeding
from dpdoctor.launch.progress import Progress
from dpdoctor.spec import Recording


class PairedGate(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        root: directory of all launches.
        plan: after how many pairs the gate looks.
        asked: relative slowdown to allow.
        calibrations: directory where the noise of machines is kept.
        explaining: of the full launches that say why a mode regressed.
    """

    root: Path
    base: Checkout
    head: Checkout
    plan: Plan
    asked: float
    calibrations: Path
    explaining: Recording

    @property
    def sides(self) -> dict[SideName, Checkout]:
        """Return both checkouts by their name."""
        return {"base": self.base, "head": self.head}


def gate(wanted: PairedGate, progress: Progress) -> GateResult:
    """Return what pairs of launches show; without this machine's noise nothing is launched and nothing judged.

    Ctrl-C, or SIGTERM, ends it with what is known by then.

    Raises:
        BaselineError: the calibration is damaged.
        OutputError: the directory of a launch cannot be written.
    """
    modes, machine = wanted.base.modes, wanted.base.header.fingerprint
    found = calibration.find(wanted.calibrations, wanted.base.spec, machine)
    if found is None or not set(modes) <= set(found.modes):
        refusals = calibration.missing(wanted.calibrations, wanted.base.spec, machine, found, modes)
        return result("paired", wanted.base.side(), wanted.head.side(), refusals=refusals, calibration=found)
    with heeding():
        return _launched(wanted, found, progress)


def _launched(wanted: PairedGate, found: Calibration, progress: Progress) -> GateResult:
    most = wanted.plan.last.pairs
    launches = Launches(wanted.root, wanted.sides, progress, most=most_launches(most))
    done = alternate(launches, _decide(wanted, found), modes=wanted.base.modes, most_pairs=most)
    results = {
        name: _mode(
            by_all_windows(verdict, done.pairs[name], plan=wanted.plan, noise=found.modes[name]), done.pairs[name]
        )
        for name, verdict in done.verdicts.items()
    }
    told, unexplained = results, []
    if any(mode.outcome == "regressed" for mode in results.values()):
        # The verdict stands, whatever becomes of its explanation.
        try:
            full = None if done.interrupted else _full(wanted, results, progress)
            told = explained(results, launches, full)
            unexplained = [] if full else ["No finding is told to have moved: there was no full launch of both sides"]
        except DpDoctorError as error:
            unexplained = [f"What moved could not be told: {error}"]
    return result(
        "paired",
        wanted.base.side(),
        wanted.head.side(),
        modes=told,
        refusals=done.refusals,
        calibration=found,
        remarks=(*_interrupted(done), *unexplained, *_other_machine(wanted, found), *other_pace(done.pairs, found)),
    )


def _decide(wanted: PairedGate, found: Calibration) -> Decide[Verdict]:
    noise = {mode: found.modes[mode] for mode in wanted.base.modes}
    return partial(decide_all, plan=wanted.plan, noise=noise, asked=wanted.asked)


def _mode(verdict: Verdict, pairs: Sequence[Pair]) -> ModeResult:
    return ModeResult(
        outcome=verdict.outcome,
        reason=verdict.reason,
        effect=verdict.effect,
        tolerance=verdict.tolerance,
        asked=verdict.asked,
        alpha=verdict.alpha,
        fail_alpha=verdict.fail_alpha,
        mde=verdict.mde if math.isfinite(verdict.mde) else None,
        pairs=tuple(pairs),
    )


def _full(
    wanted: PairedGate, results: Mapping[str, ModeResult], progress: Progress
) -> dict[SideName, Diagnosis] | None:
    """Return a full launch of each side, of the modes that regressed."""
    regressed = [name for name, mode in results.items() if mode.outcome == "regressed"]
    return full_launches(wanted.root, wanted.sides, regressed, wanted.explaining, progress)


def _interrupted(done: Alternated[Verdict]) -> tuple[str, ...]:
    if not done.interrupted:
        return ()
    counting = max((sum(pair.replaced is None for pair in pairs) for pairs in done.pairs.values()), default=0)
    return (f"Interrupted; pairs that count: {units.whole(counting)}. What was launched is kept",)


def _other_machine(wanted: PairedGate, found: Calibration) -> tuple[str, ...]:
    """Return what is not as it was when the noise of these modes was measured, though it may be gated."""
    now = wanted.base.header.fingerprint
    of_modes = [found.modes[name].fingerprint or found.fingerprint for name in wanted.base.modes]
    unlike = dict.fromkeys(refusal.field for then in of_modes for refusal in of_machines(then, now, "time"))
    return (f"The noise was measured with another {', '.join(unlike)}",) if unlike else ()


def other_pace(pairs: Mapping[str, Sequence[Pair]], found: Calibration) -> tuple[str, ...]:
    """Return of which modes base takes another time than where the noise was measured."""
    told = {name: calibration.other_pace(found.modes[name], _base_seconds(of_mode)) for name, of_mode in pairs.items()}
    return tuple(f"In {name} a step of base {text}: calibrate anew" for name, text in told.items() if text is not None)


def _base_seconds(pairs: Sequence[Pair]) -> list[float]:
    return [pair.base_s for pair in pairs if pair.replaced is None and pair.base_s is not None]
