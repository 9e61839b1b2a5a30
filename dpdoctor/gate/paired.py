"""A gate of two checkouts: paired launches, judged as they come, and what moved where one regressed.

What moved gives a slower step a place to look at: phases and counters are told of all pairs, findings of one full
launch of each side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, Figure
from dpdoctor.analysis.comparison import Fact, FindingComparison, FindingState, ModeComparison, compare, counter_facts
from dpdoctor.errors import DpDoctorError
from dpdoctor.gate import calibration, counters
from dpdoctor.gate.alternate import Alternated, Decide, alternate, most_launches
from dpdoctor.gate.comparable import of_machines
from dpdoctor.gate.decide import Verdict, by_all_windows, decide_all
from dpdoctor.gate.design import Plan
from dpdoctor.gate.model import SIDES, Calibration, GateResult, ModeResult, Moved, Pair, SideName, result
from dpdoctor.gate.sides import Checkout, Launches
from dpdoctor.launch.interruption import heeding
from dpdoctor.launch.progress import Progress
from dpdoctor.spec import BASELINE, Recording


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
            told = _explained(results, launches, full)
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
    return _full_launches(wanted.root, wanted.sides, regressed, wanted.explaining, progress)


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


# Where the full launches go, below the gate's directory.
_EXPLAINED = "explained"


def _explained(
    results: Mapping[str, ModeResult], launches: Launches, full: Mapping[SideName, Diagnosis] | None
) -> dict[str, ModeResult]:
    """Return results with what moved in the modes that regressed; `full` None: there was no full launch of both."""
    regressed = [name for name, result in results.items() if result.outcome == "regressed"]
    if not regressed:
        return dict(results)
    numbers = _counting(results[regressed[0]].pairs)
    pairs = {side: launches.analysis(side, numbers) for side in SIDES}
    told = {name: _moved(name, pairs, full) for name in regressed}
    return {name: replace(result, moved=told.get(name, ())) for name, result in results.items()}


def _full_launches(
    root: Path, checkouts: Mapping[SideName, Checkout], modes: Sequence[str], recording: Recording, progress: Progress
) -> dict[SideName, Diagnosis] | None:
    """Launch these modes of each side once more, with ablations and a trace, for what the rules find with them.

    Returns both analysed; None: one of them failed or was interrupted, and explains nothing.

    Raises:
        OutputError: the directory cannot be written.
    """
    only = {side: _only(checkout, modes).changed(recording=recording) for side, checkout in checkouts.items()}
    launches = Launches(root / _EXPLAINED, only, progress, most=1)
    for side in SIDES:
        measured = launches(side, 1)
        if measured.refusals or measured.interrupted:
            return None
    return {side: launches.analysis(side, {1}) for side in SIDES}


def _only(checkout: Checkout, modes: Sequence[str]) -> Checkout:
    # The baseline tells other modes which parameters get no gradient.
    return checkout.changed(modes=tuple(mode for mode in checkout.spec.modes if mode.name in {*modes, BASELINE}))


def _counting(pairs: Sequence[Pair]) -> set[int]:
    return {number for number, pair in enumerate(pairs, 1) if pair.replaced is None}


def _moved(
    mode: str, pairs: Mapping[SideName, Diagnosis], full: Mapping[SideName, Diagnosis] | None
) -> tuple[Moved, ...]:
    of_pairs = moved(pairs["base"], pairs["head"], mode)
    if full is None:
        return of_pairs
    findings = [item for item in moved(full["base"], full["head"], mode) if item.kind == "finding"]
    return (*(item for item in of_pairs if item.kind != "finding"), *findings)


_FINDING_WORDS = {"appeared": "appeared", "gone": "gone", "more": "costs more", "less": "costs less"}


def moved(base: Diagnosis, head: Diagnosis, mode: str) -> tuple[Moved, ...]:
    """Return what differs in one mode of two runs: phases, findings, counters, of each kind the largest first.

    A phase is there only where the 95% interval of its difference leaves out 0. That interval holds within one launch
    each: it tells where to look in a step that is known to be slower, not that it is. Empty where a run has no figures
    of the mode that may be compared. Counters in which the launches of one side differ among themselves are left out.
    """
    comparison = compare([base, head])
    found = comparison.modes.get(mode)
    if found is None:
        return ()
    varying = _varying(base, mode) | _varying(head, mode)
    return (*_phases(found), *_findings(comparison.findings, mode), *_counters(found, varying))


def _phases(mode: ModeComparison) -> Iterator[Moved]:
    changes = {name: row.changes[0] for name, row in mode.phases.items()}
    changed = [name for name, change in changes.items() if change.verdict in ("more", "less")]
    for name in sorted(changed, key=lambda name: -_size(changes[name].difference)):
        base, head = mode.phases[name].figures
        yield Moved(kind="phase", name=name, text="", base=base, head=head)


def _findings(findings: Iterable[FindingComparison], mode: str) -> Iterator[Moved]:
    changed = [found for found in findings if found.mode == mode and found.changes[0] in _FINDING_WORDS]
    for found in sorted(changed, key=lambda found: -abs(_cost(found.runs[1]) - _cost(found.runs[0]))):
        told = found.runs[0] if found.changes[0] == "gone" else found.runs[1]
        title = told.finding.title if told.finding else found.rule
        base, head = (figure if figure.value is not None else None for figure in found.cost.figures)
        yield Moved(
            kind="finding", name=found.rule, text=f"{_FINDING_WORDS[found.changes[0]]}: {title}", base=base, head=head
        )


def _varying(of: Diagnosis, mode: str) -> set[str]:
    """Return the counters that are not alike in all launches of a run, in which not always the same step is counted."""
    records = [launch.ranks[0].record for launch in of.run.modes.get(mode, ()) if launch.ranks]
    facts = counter_facts([record.counters for record in records if record is not None])
    return {fact.name for fact in facts if any(fact.differs)}


def _counters(mode: ModeComparison, varying: set[str]) -> Iterator[Moved]:
    changed = [fact for fact in mode.counters if fact.differs[0] and fact.name not in varying]
    for fact in sorted(changed, key=lambda fact: (counters.place(fact.name), -_growth(fact))):
        base, head = (counters.value_text(fact.name, value) for value in fact.values)
        yield Moved(kind="counter", name=fact.name, text=f"{head} instead of {base}")


def _size(figure: Figure) -> float:
    return abs(figure.value or 0.0)


def _cost(state: FindingState) -> float:
    """Return what a finding costs, as a share; 0 where there is none that stands."""
    if state.finding is None or state.finding.status == "refuted":
        return 0.0
    return state.finding.cost.value or 0.0


def _growth(fact: Fact) -> float:
    """Return the relative change; what is no number, or was 0, changed beyond measure."""
    base, head = fact.values
    return abs(head - base) / base if isinstance(base, int) and isinstance(head, int) and base else math.inf
