"""Open the plan and set it against the verdicts: was each planted fault named first, and at its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dpdoctor import units

from .catalogue import Entry
from .plan import PlannedRun
from .verdicts import Checked, Verdict

# What a cost may be off by: this share of the step, or this share of the planted cost.
STEP_SHARE, COST_SHARE = 0.03, 0.15
# What may at most be seen of a step that an ablation removes, in a script that is called healthy.
HEALTHY = {"no_comm": 0.05, "cached_batches": 0.03}
# What the table is to show: first in so many runs, no warning in so many, agreement in so many comparisons.
FIRST, SILENT, AGREED = 0.95, 0.95, 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One planted run.

    Attributes:
        first: whether a rule that names the fault is the first finding of its mode; healthy: no mode has a finding.
        said: the first finding, or what went wrong.
        error: difference of cost and planted cost, as a share of the step; None: no known time, or not named.
        within: whether it is small enough; None as above.
        proved: healthy scripts only: whether there is little to remove, as it is seen and as the ablations agree.
    """

    run: PlannedRun
    first: bool
    said: str
    error: float | None = None
    within: bool | None = None
    proved: bool | None = None


def fault(entry: Entry, verdict: Verdict) -> str | None:
    """Return what dpdoctor says of a run that its entry does not; None: it is right."""
    if verdict.error:
        return verdict.error
    named = [f"{finding.rule} in {name}" for name, mode in verdict.modes.items() for finding in mode.named]
    if entry.healthy:
        return f"{', '.join(named)}: named in a healthy sample" if named else None
    of_mode = [finding.rule for finding in verdict.modes[entry.mode].named]
    if of_mode and of_mode[0] in entry.rules:
        return None
    return f"{', '.join(entry.rules)} is not named first, but {', '.join(of_mode) or 'nothing'}"


def score(run: PlannedRun, entry: Entry, verdict: Verdict, planted_s: float | None = None) -> Score:
    """Return how well a run's verdict fits to what was planted in it, and to its seconds per step if known."""
    return _healthy(run, entry, verdict) if entry.healthy else _planted(run, entry, verdict, planted_s)


def _healthy(run: PlannedRun, entry: Entry, verdict: Verdict) -> Score:
    named = [f"{finding.rule} in {name}" for name, mode in verdict.modes.items() for finding in mode.named]
    checked = [one for mode in verdict.modes.values() for one in mode.checked]
    ablations = {"cached_batches", *(["no_comm"] if entry.mode != "single" else [])}
    little = all(one.agrees and one.seen < HEALTHY[one.ablation] for one in checked)
    proved = little and ablations <= {one.ablation for one in checked}
    said = verdict.error or ", ".join(named) or "no warning"
    return Score(run=run, first=not named and verdict.error is None, said=said, proved=proved)


def _planted(run: PlannedRun, entry: Entry, verdict: Verdict, planted_s: float | None) -> Score:
    mode = verdict.modes.get(entry.mode)
    if mode is None or not mode.named:
        return Score(run=run, first=False, said=verdict.error or "no warning")
    first = mode.named[0]
    named = first.rule in entry.rules
    if not named or planted_s is None or mode.step_s is None or first.share is None:
        return Score(run=run, first=named, said=first.rule)
    planted = planted_s / mode.step_s
    error = first.share - planted
    within = abs(error) <= max(STEP_SHARE, COST_SHARE * planted)
    return Score(run=run, first=True, said=first.rule, error=error, within=within)


def table(entries: Mapping[str, Entry], scores: Sequence[Score]) -> str:
    """Return the Markdown table: one line per entry."""
    lines = [
        "| planted | in | rule expected | first | cost off by, of the step: median, worst | within | said instead |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, entry in entries.items():
        of_entry = [score for score in scores if score.run.entry == name]
        if of_entry:
            lines.append(_line(name, entry, of_entry))
    return "\n".join(lines)


def _line(name: str, entry: Entry, scores: Sequence[Score]) -> str:
    errors = [abs(score.error) for score in scores if score.error is not None]
    costs = f"{units.share(median(errors))}, {units.share(max(errors))}" if errors else "—"
    judged = [score.within for score in scores if score.within is not None]
    within = f"{sum(judged)} of {len(judged)}" if judged else "—"
    if entry.healthy:
        within = f"healthy by the ablations: {sum(bool(score.proved) for score in scores)} of {len(scores)}"
    instead = "; ".join(sorted({score.said for score in scores if not score.first}))
    first = f"{sum(score.first for score in scores)} of {len(scores)}"
    expected = ", ".join(entry.rules) or "no warning"
    return f"| {name} | {entry.mode} | {expected} | {first} | {costs} | {within} | {instead} |"


def totals(entries: Mapping[str, Entry], scores: Sequence[Score], checked: Sequence[Checked]) -> list[str]:
    """Return what the table must show as a whole, in sentences."""
    planted = [score.first for score in scores if not entries[score.run.entry].healthy]
    costs = [score.within for score in scores if score.within is not None]
    silent = [score.first for score in scores if score.proved]
    lines = [
        _share("planted faults named first", planted, FIRST),
        _share("known costs within bounds", costs, 1.0),
        _share("healthy runs, proved by ablations, without a warning", silent, SILENT),
    ]
    for ablation in sorted({one.ablation for one in checked}):
        held = [one.agrees for one in checked if one.ablation == ablation]
        lines.append(_share(f"seen and gained by {ablation} agree", held, AGREED))
    return lines


def _share(what: str, held: Sequence[bool], least: float) -> str:
    if not held:
        return f"{what}: none was run"
    share = sum(held) / len(held)
    verdict = "as it must be" if share >= least else "TOO FEW"
    return f"{what}: {sum(held)} of {len(held)}, {units.share(share)}; at least {units.share(least)}: {verdict}"
