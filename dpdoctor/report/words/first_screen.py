"""The answer to a run in ten seconds: what bounds it, what to do first, how modes compare, what it could not tell.

Assembled once from run.json, for the page, the terminal and a comment; each of them only lays it out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import BASELINE, Figure, Finding, Inconclusive, ModeSummary, RunSummary
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.analysis.machine import OTHERS_USED
from dpdoctor.report.blocks import Advice, Ranking
from dpdoctor.report.text import (
    as_typed,
    batch_text,
    by_reason,
    capital,
    clipped,
    figure_text,
    listed,
    mode_label,
    sentence,
    short_interval,
)
from dpdoctor.report.words import diagnosis, standing, verdict
from dpdoctor.report.words.step_parts import AT_MOST, LABELS, StepPart, step_parts
from dpdoctor.report.words.verdict import SAID
from dpdoctor.rules import BY_NAME
from dpdoctor.rules.cpu_oversubscription import FEWER_RANKS
from dpdoctor.rules.diagnose import ALIKE, MAY_BE_NOTHING, OURS, is_of_result
from dpdoctor.rules.rule import CRITICAL

MOST_OPPORTUNITIES = 3
LONGEST_TITLE, LONGEST_REMEDY, LONGEST_LINE = 90, 200, 80
# What bounds a run, by the rule that says so: in a word, and as a sentence about shares of a step.
_BOUND_BY = {
    "data_starved": ("Input-bound", "Data loading takes {} of each step"),
    "exposed_communication": ("Communication-bound", "Exposed communication takes {} of each step"),
    "no_overlap": ("Communication-bound", "Exposed communication takes {} of each step"),
    "small_collectives": ("Communication-bound", "Many small collectives take {} of each step"),
    "straggler": ("Straggler", "Waiting for a slow rank takes {} of each step"),
}
# A change that would gain something, though nothing is wrong: it does not tell what bounds the run.
_NO_FAULT = SAID | {"amp_unused", "optimizer_unfused"}
# Of an interval whose longer side is so many times the other, the ends are shown, and no ±.
LOPSIDED = 1.5
# So many times another one's, a mean batch is another one: loaders that keep their last batch differ by less.
ANOTHER_BATCH = 1.01
UNKNOWN = "unknown"
NOT_CLEAR = "No finding stands clear of dpdoctor's own cost"
LONGER = "measure longer (--time-budget, or more epochs where the script ends first)"
UNTOLD = "What a step consists of was not measured"
# In a mode's remark, the seconds that would have been enough.
_BUDGET = re.compile(r"give --time-budget (\d+)")
_SHARE = re.compile(r"[\d.]+%")
# Rules whose cause is there where they cannot tell: only its cost is unknown.
_COMMUNICATION = "communication"
_UNTOLD = {"exposed_communication": _COMMUNICATION, "cpu_oversubscription": "more threads than cores"}
_MORE_RANKS = "more ranks than cores"
_BASIS = {"measured": "measured", "predicted": "estimated", "at most": "upper bound"}
_SIGNS = {"measured": "", "predicted": "~", "at most": AT_MOST}


class ModeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One mode as the first screen compares it.

    Attributes:
        status: the mode's, or failed where its figures are withheld.
        runs_on: its ranks or devices.
        throughput, speedup, efficiency, step, epoch: its figures; None: it has none, and `note` says why.
        interval: of the throughput, as in ±1.1% or, where its sides differ, its ends; empty: none.
        parts: what its step consists of; empty: unknown.
    """

    name: str
    status: str
    runs_on: str
    throughput: Figure | None = None
    interval: str = ""
    speedup: Figure | None = None
    efficiency: Figure | None = None
    step: Figure | None = None
    epoch: Figure | None = None
    parts: tuple[StepPart, ...] = ()
    note: str = ""


class Opportunity(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change, with all modes that it helps.

    Attributes:
        remedy: what to do; empty: nothing is known to help, and `no_remedy` says why, where that is known.
        line, code: of the script, where to do it, and what to write there.
        gain: of the mode in which the remedy gives most; None: it was not predicted, or nothing bounds it. `basis`:
            measured, estimated, upper bound.
        modes: what it costs and gives in each mode, in a few words.
        gains: what it gives in each mode that has it, as short as can be: with ~ where estimated, with ≤ where an upper
            bound.
        anchor: of the whole finding on the page.
    """

    title: str
    remedy: str
    no_remedy: str
    line: str
    code: str
    gain: Figure | None
    basis: str
    modes: tuple[str, ...]
    gains: Mapping[str, str]
    anchor: str


class FirstScreen(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader sees first.

    Attributes:
        bound_by: in a word what bounds the run; empty: nothing stands out.
        tone: of the answer, one of blocks.TONES.
        answer: what bounds the run, in a sentence.
        do_first: what to change first and what that gives; empty: nothing is known to help.
        linear: the step that linear scaling would have, in seconds; None: it differs between modes, or is unknown.
        opportunities: the largest gain first, but for work that is done twice; `num_more` are in the findings alone.
        is_done_twice: whether the first of them is against that.
        limits: what this run could not tell, or what makes a figure doubtful, a sentence each.
        hints: what more it would tell if it were run otherwise, a sentence each; no figure shown depends on it.
    """

    bound_by: str
    tone: str
    answer: str
    do_first: str
    modes: tuple[ModeRow, ...]
    linear: float | None
    opportunities: tuple[Opportunity, ...]
    is_done_twice: bool
    num_more: int
    limits: tuple[str, ...]
    hints: tuple[str, ...]


def first_screen(run: RunSummary) -> FirstScreen:
    """Return the first screen of a run of modes."""
    word, tone, answer = _answer(run)
    answer = f"{_unknown_rates(run)}{_slower(run)}{answer}"
    first = _against_double_work(_first_changes(run))
    by_rule = sorted(diagnosis.bottlenecks(run), key=lambda findings: first is not None and first not in findings)
    return FirstScreen(
        bound_by=word,
        tone=tone,
        answer=answer,
        do_first=_do_first(run),
        modes=tuple(_row(run, name) for name in run.modes),
        linear=_linear(run),
        opportunities=tuple(_opportunity(run, findings) for findings in by_rule[:MOST_OPPORTUNITIES]),
        is_done_twice=first is not None,
        num_more=max(0, len(by_rule) - MOST_OPPORTUNITIES),
        limits=tuple(_limits(run)),
        hints=tuple(_hints(run)),
    )


def ranking(screen: FirstScreen) -> Iterator[Ranking]:
    """Yield what to change; a gain's meter is full at twice today's throughput."""
    if not screen.opportunities:
        return
    first = " Work that is done twice comes first." if screen.is_done_twice else ""
    more = f" The findings below have {screen.num_more} more." if screen.num_more else ""
    yield Ranking(
        title="Opportunities",
        caption=f"By likely gain in throughput; a bound is shown by its upper end; gains do not add up.{first}{more}",
        advice=tuple(
            Advice(
                title=found.title,
                text=found.remedy or found.no_remedy,
                line=found.line,
                code=found.code,
                gain=figure_text(found.gain) if found.gain else "",
                gain_value=found.gain.value if found.gain else None,
                basis=found.basis,
                share=min(1.0, max(0.0, (found.gain.value or 1.0) - 1)) if found.gain else 0.0,
                notes=found.modes,
                anchor=found.anchor,
            )
            for found in screen.opportunities
        ),
    )


def _answer(run: RunSummary) -> tuple[str, str, str]:
    """Return what bounds the run: in a word, its tone, and in a sentence."""
    leading = standing.leaders(run)
    if not leading:
        found = verdict.headline(run)
        return "", found.tone, found.sentence
    costly = diagnosis.parts(run).costly
    first = _largest(run, [found for found in costly if found.mode in leading and found.rule not in _NO_FAULT])
    if first is None:
        longest = _longest_part(leading, standing.focus(run))
        return "", "plain", sentence("; ".join(filter(None, (_nothing(run, leading), longest))) or UNTOLD)
    word, told = _BOUND_BY.get(first.rule, ("", ""))
    tone = diagnosis.SEVERITY_TONES[first.severity]
    if not told or first.share_of != "step" or first.cost.value is None:
        return (
            word if (first.cost.value or 0.0) >= CRITICAL else "",
            tone,
            sentence(f"{capital(clipped(first.title, LONGEST_TITLE))} ({mode_label(first.mode)})"),
        )
    # Where another rule names what to do this is a mere fact of the mode, and no less of its step.
    facts = [found for found in diagnosis.parts(run).facts if found.mode in leading]
    alike = [found for found in (*costly, *facts) if found.rule == first.rule and found.share_of == "step"]
    shares = {found.mode: part for found in alike if (part := diagnosis.told_share(run, found)) is not None}
    (mode, share), *others = sorted(shares.items(), key=lambda known: (known[0] not in leading, -known[1]))
    beside = "".join(f", {units.share(other)} {_where(name)}" for name, other in others)
    without = _shorter_without_loader(first, shares.get(first.mode, 1.0))
    # A run of which nine tenths are compute is bound by nothing else, whatever could be saved.
    bound_by = word if share >= CRITICAL or without else ""
    return bound_by, tone, sentence(f"{told.format(units.share(share))} {_where(mode)}{beside}{without}")


def _shorter_without_loader(first: Finding, share: float) -> str:
    """Return, as the end of a sentence, what a step gains without the loader beyond its wait: the cores that it takes.

    `share`: that the finding's mode is told to wait.
    """
    gained = first.cost.value or 0.0
    if first.rule != "data_starved" or gained <= share or diagnosis.are_alike(share, gained):
        return ""
    return f"; without the loader's work a step {_where(first.mode)} is {units.share(gained)} shorter"


def _nothing(run: RunSummary, leading: Mapping[str, ModeSummary]) -> str:
    """Return in a clause why the leading modes have nothing to be changed; empty: other modes have."""
    if doubtful := [one for one in _withheld_as(run, MAY_BE_NOTHING) if one.mode in leading]:
        return _doubt(run, doubtful)
    if untold := _untold(run, leading):
        return untold
    if diagnosis.parts(run).costly:
        return ""
    return NOT_CLEAR if _withheld_as(run, OURS) else "Nothing was found that would be worth a change"


def _untold(run: RunSummary, leading: Mapping[str, ModeSummary]) -> str:
    """Return of which known causes neither trace nor ablation told what they cost in which modes; empty: of none.

    In a clause for all of the same modes and way out.
    """
    known = [*_withheld_as(run, OURS), *_withheld_as(run, MAY_BE_NOTHING)]
    found = [one for one in run.inconclusive if one.rule in _UNTOLD and one.mode in leading and one not in known]
    by_cause: dict[str, list[Inconclusive]] = {}
    for one in sorted(found, key=lambda check: [*_UNTOLD].index(check.rule)):
        by_cause.setdefault(_MORE_RANKS if FEWER_RANKS in one.reason else _UNTOLD[one.rule], []).append(one)
    alike: dict[tuple[str, str], list[str]] = {}
    for cause, checks in by_cause.items():
        alike.setdefault((listed([mode_label(one.mode) for one in checks]), _way_out(checks, leading)), []).append(
            cause
        )
    clauses = (
        f"what {listed(causes)} {'costs' if causes == [_COMMUNICATION] else 'cost'} under {modes} was not measured{how}"
        for (modes, how), causes in alike.items()
    )
    return capital("; ".join(clauses))


def _way_out(checks: Sequence[Inconclusive], leading: Mapping[str, ModeSummary]) -> str:
    """Return, as the end of a clause, what would have told; the budget that was missing, where a mode's remark has it.

    Where time was not what they lacked, the skipped checks say what would do.
    """
    if any(FEWER_RANKS in one.reason for one in checks):
        return f": {FEWER_RANKS}"
    remarks = [text for one in checks if (of := leading[one.mode].conversion) for text in of.warnings]
    budgets = [match[1] for text in remarks if (match := _BUDGET.search(text))]
    if budgets:
        return f": give --time-budget {max(budgets, key=int)}"
    return f": {LONGER}" if any("--time-budget" in one.reason for one in checks) else ""


def _doubt(run: RunSummary, doubtful: Sequence[Inconclusive]) -> str:
    """Return in a clause what may cost much or nothing: the largest part of a step, where it is one."""
    parts = [(part, one) for one in doubtful if (part := diagnosis.part_of_step(run, one)) is not None]
    if parts:
        part, one = max(parts, key=lambda found: found[0].share)
        of_step = f"{units.share(part.share)} of a step {_where(one.mode)}"
        return f"Whether {LABELS[part.key].lower()}, {of_step}, costs anything could not be told: {LONGER}"
    first = doubtful[0]
    return f"Whether a change would gain anything {_where(first.mode)} could not be told ({_title(first)}): {LONGER}"


def _largest(run: RunSummary, faults: Sequence[Finding]) -> Finding | None:
    """Return what takes most of a step, whatever can be done about it; of what takes about as much the first."""
    if (wrong := next(filter(_is_wrong_or_twice, faults), None)) is not None:
        return wrong
    shares = [(diagnosis.told_share(run, found) or 0.0) * (found.share_of == "step") for found in faults]
    return next((found for found, share in zip(faults, shares, strict=True) if share >= ALIKE * max(shares)), None)


def _is_wrong_or_twice(finding: Finding) -> bool:
    """Return whether ranks train what is wrong, or the same: what their step consists of is beside the point then."""
    return is_of_result(finding) or _is_done_twice(finding)


def _is_done_twice(finding: Finding) -> bool:
    """Return whether ranks do the same work."""
    return finding.rule == "unsharded_data" and finding.status == "confirmed"


def _where(name: str) -> str:
    return "on one device" if standing.is_baseline(name) else f"under {mode_label(name)}"


def _unknown_rates(run: RunSummary) -> str:
    """Return of which modes the throughput is unknown, in a sentence; empty: of none, or of all, as the answer says."""
    unknown = standing.without_throughput(run) if standing.leaders(run) else {}
    return f"Samples per second of {listed([mode_label(name) for name in unknown])} are unknown. " if unknown else ""


def _slower(run: RunSummary) -> str:
    """Return which leading modes are slower than one device, in a sentence; empty: none."""
    slow = {
        name: mode for name, mode in standing.leaders(run).items() if standing.against_one(mode.speedup) == "slower"
    }
    told = listed([f"{mode_label(name)} ({figure_text(mode.speedup)})" for name, mode in slow.items()]) if slow else ""
    return f"{told} {'is' if len(slow) == 1 else 'are'} slower than one device. " if slow else ""


def _longest_part(leading: Mapping[str, ModeSummary], name: str | None) -> str:
    """Return what most of a mode's step is, in a clause; empty: unknown."""
    parts = step_parts(leading[name]) if name is not None else ()
    if name is None or not parts:
        return ""
    longest = max(parts, key=lambda part: part.share)
    return f"{units.share(longest.share)} of a step {_where(name)} is {longest.text}"


def _do_first(run: RunSummary) -> str:
    """Return the first change that is known to give something, where, and what it gives in each mode that it helps.

    What makes training right comes before that.
    """
    costly = diagnosis.parts(run).costly
    wrong = next((found for found in costly if found.short_remedy and is_of_result(found)), None)
    if wrong is not None:
        return sentence(f"{capital(_change(wrong))}{_at(run, wrong)}: ranks train different models")
    changes = _first_changes(run)
    if not changes:
        return ""
    most = _against_double_work(changes) or changes[0]
    focus = standing.focus(run)
    finding = next((found for found in changes if found.rule == most.rule and found.mode == focus), most)
    change, also, tried = (finding.short_remedy or "").partition("; ")
    others = [other for other in costly if other.rule == finding.rule and other is not finding and other.short_remedy]
    alike = [other for other in others if _change(other) == change]
    beside = "".join(f", {_short_gain(other)} {_where(other.mode)}" for other in alike if _gains(other))
    apart = _of_other_modes([other for other in others if other not in alike])
    # What was tried and does not help comes after what does, but for what other modes need: that may be the same.
    last = apart or f"{also}{tried}{f' {_where(finding.mode)}' if tried and beside else ''}"
    gained = f"{_gain(finding)} {_where(finding.mode)}{beside}{last}{_but_others(run, finding)}"
    return sentence(f"{capital(change)}{_at(run, finding)}: {gained}")


def _but_others(run: RunSummary, finding: Finding) -> str:
    """Return, as the end of a sentence, that other processes took cores while this, or its mode's speedup, was
    measured; empty: none did.
    """
    reasons = (*finding.evidence, run.modes[finding.mode].speedup.reason or "")
    taken = next((reason for reason in reasons if reason.startswith(OTHERS_USED)), "")
    return f"; but {taken}" if taken else ""


def _first_changes(run: RunSummary) -> list[Finding]:
    """Return the changes that are known to give something: those for the modes that the answer is about, if any."""
    leading = standing.leaders(run)
    known = [found for found in diagnosis.parts(run).costly if found.short_remedy and _gains(found)]
    return [found for found in known if found.mode in leading] or known


def _against_double_work(changes: Sequence[Finding]) -> Finding | None:
    """Return what comes before larger gains where ranks do the same work; None: they do not.

    To end that, or one device, where the mode would still be slower than that.
    """
    twice = next(filter(_is_done_twice, changes), None)
    if twice is None:
        return None
    return max((twice, *(found for found in changes if found.mode == twice.mode and found.rule in SAID)), key=_size)


def _of_other_modes(others: Sequence[Finding]) -> str:
    """Return, as the end of a sentence, what to change in modes that need something else, and what that gives."""
    by_change: dict[str, list[Finding]] = {}
    for other in others:
        by_change.setdefault(_change(other), []).append(other)
    return "".join(f"; {_in_modes(found)}: {change}{_gains_of(found)}" for change, found in by_change.items())


def _in_modes(findings: Sequence[Finding]) -> str:
    """Return where findings are: `under ddp and fsdp`, `on one device and under ddp`."""
    first, *others = sorted((finding.mode for finding in findings), key=standing.is_baseline, reverse=True)
    is_parallel = not standing.is_baseline(first)
    return listed([_where(first), *(mode_label(name) if is_parallel else _where(name) for name in others)])


def _gains_of(findings: Sequence[Finding]) -> str:
    """Return what a change gives in each of the modes in brackets; empty: unknown."""
    gains = [_short_gain(finding) for finding in findings if _gains(finding)]
    return f" ({listed(gains)})" if gains else ""


def _change(finding: Finding) -> str:
    """Return what to change in a few words, without what else was tried."""
    return (finding.short_remedy or "").partition("; ")[0]


def _gains(finding: Finding) -> bool:
    """Return whether the remedy is known to give something, also as it is told: 1.004 is told as 1.00x."""
    known, told = finding.speedup, finding.gain
    if known is None or known.value is None or told is None:
        return False
    return (known.low or known.value) > 1 and (told.value is None or units.times(told.value) != units.times(1))


def _gain(finding: Finding) -> str:
    """Return the known gain of a finding: how it is known, and how much."""
    assert finding.gain is not None
    if finding.gain.value is None:
        return diagnosis.NO_BOUND
    interval = short_interval(finding.gain)
    return f"{_BASIS[finding.speedup_basis]} {figure_text(finding.gain)}{f' ({interval})' if interval else ''}"


def _short_gain(finding: Finding) -> str:
    """Return the known gain of a finding with a mark of how it is known."""
    assert finding.gain is not None
    if finding.gain.value is None:
        return "no bound"
    return f"{_SIGNS[finding.speedup_basis]}{figure_text(finding.gain)}"


def _row(run: RunSummary, name: str) -> ModeRow:
    mode = run.modes[name]
    why, where = why_withheld(mode), standing.devices(mode)
    if why is not None:
        return ModeRow(name=name, status="failed" if mode.status == "ok" else mode.status, runs_on=where, note=why)
    if mode.status == "inactive":
        reason = (mode.reason or "changed nothing").partition(";")[0]
        return ModeRow(name=name, status=mode.status, runs_on=where, note=reason)
    compared = BASELINE in run.modes and not standing.is_baseline(name)
    return ModeRow(
        name=name,
        status=mode.status,
        runs_on=where,
        throughput=mode.throughput,
        interval=_plus_minus(mode.throughput),
        speedup=mode.speedup if compared else None,
        efficiency=standing.linear(mode) if compared else None,
        step=mode.step,
        epoch=mode.epoch_s,
        parts=step_parts(mode),
        note="baseline" if standing.is_baseline(name) else "",
    )


def _plus_minus(figure: Figure) -> str:
    if not figure.value or figure.low is None or figure.high is None or figure.low == figure.high:
        return short_interval(figure)
    above, below = figure.high - figure.value, figure.value - figure.low
    if max(above, below) > LOPSIDED * min(above, below):
        return short_interval(figure)
    return f"\N{PLUS-MINUS SIGN}{units.share((figure.high - figure.low) / 2 / figure.value)}"


def _linear(run: RunSummary) -> float | None:
    shown = standing.shown_modes(run)
    ideals = {mode.waterfall.ideal.value for mode in shown.values() if mode.waterfall and mode.waterfall.ideal.value}
    return next(iter(ideals)) if len(ideals) == 1 else None


def _opportunity(run: RunSummary, findings: Sequence[Finding]) -> Opportunity:
    """Return what to do about one bottleneck; the mode in which that gives most speaks for it, one with a remedy."""
    known_rule = BY_NAME.get(findings[0].rule)
    known = [found for found in findings if found.speedup is not None and found.speedup.value is not None]
    helped = [found for found in findings if found.remedy] or findings
    best = max((found for found in helped if found in known), key=_size, default=helped[0])
    is_bounded = best.gain is not None and best.gain.value is not None
    return Opportunity(
        title=known_rule.title if known_rule else clipped(capital(best.title), LONGEST_TITLE),
        remedy=clipped(_remedy(best, findings), LONGEST_REMEDY),
        no_remedy=_no_remedy(findings),
        line=_line(run, best),
        code=best.code or "",
        gain=best.gain if is_bounded else None,
        basis=_BASIS[best.speedup_basis] if is_bounded else diagnosis.NO_BOUND if best in known else best.status,
        modes=tuple(_chip(run, found, best) for found in findings),
        gains={found.mode: _short_gain(found) if found in known else UNKNOWN for found in findings},
        anchor=diagnosis.anchor(run, best),
    )


def _remedy(best: Finding, findings: Sequence[Finding]) -> str:
    """Return what helps the mode in which it gives most, with all modes that it helps where others need another.

    Of what modes need alike in few words, and not in full, the shortest: the others may have a choice that it has not.
    """
    if not best.remedy:
        return ""
    alike = [found for found in findings if _is_same_remedy(found, best)]
    in_full = {_SHARE.sub("%", found.remedy or ""): found.remedy or "" for found in (*alike, best)}
    remedy = best.remedy if len(in_full) == 1 else min(in_full.values(), key=len)
    return sentence(capital(remedy if len(alike) == len(findings) else f"{_in_modes(alike)}: {remedy}"))


def _no_remedy(findings: Sequence[Finding]) -> str:
    """Return why there is none, each reason with its modes; empty: there is one for a mode, or no reason is known."""
    reasons: dict[str, list[Finding]] = {}
    for found in findings:
        if found.no_remedy:
            reasons.setdefault(found.no_remedy, []).append(found)
    if not reasons or any(found.remedy for found in findings):
        return ""
    told = (why if len(of) == len(findings) else f"{_in_modes(of)}: {why}" for why, of in reasons.items())
    return sentence(f"No remedy: {'; '.join(told)}")


def _is_same_remedy(finding: Finding, other: Finding) -> bool:
    """Return whether two modes need the same: in few words, or but for the shares, which differ all the same."""
    if finding.short_remedy and finding.short_remedy == other.short_remedy:
        return True
    return _SHARE.sub("%", finding.remedy or "") == _SHARE.sub("%", other.remedy or "")


def _line(run: RunSummary, finding: Finding) -> str:
    """Return the line to change; a path as it was typed, if it was."""
    return clipped(as_typed(finding.line or "", run.command), LONGEST_LINE)


def _at(run: RunSummary, finding: Finding) -> str:
    """Return the line to change in brackets; empty: none is known."""
    return f" ({_line(run, finding)})" if finding.line else ""


def _size(finding: Finding) -> float:
    assert finding.gain is not None
    return finding.gain.value or 0.0


def _chip(run: RunSummary, finding: Finding, best: Finding) -> str:
    """Return what a bottleneck costs in a mode, what its remedy gives, and that one where it is its own."""
    cost, gain = diagnosis.told_share(run, finding), finding.speedup
    of = "a step" if finding.share_of == "step" else diagnosis.OF_WORDS[finding.share_of]
    parts = [f"{units.share(cost)} of {of}"] if cost is not None else []
    parts += [_gain(finding)] if gain is not None and gain.value is not None else []
    drawn = diagnosis.part_of_step(run, finding)
    parts += [_shorter(finding, cost)] if cost is not None and not (drawn and drawn.is_gain) else []
    own = f" ({finding.short_remedy})" if finding.short_remedy and not _is_same_remedy(finding, best) else ""
    return f"{mode_label(finding.mode)}: {', '.join(filter(None, parts)) or finding.status}{own}"


def _shorter(finding: Finding, told: float) -> str:
    """Return how much shorter a step is without what is found, which is not what it takes of a step where trace and
    ablation differ; empty: about the share that is told of it.
    """
    gain = finding.gain.value if finding.gain is not None else None
    if finding.share_of != "step":
        return ""
    if finding.speedup_basis == "at most" and gain is not None:
        saved, words = 1 - 1 / gain, "a step up to {} shorter"
    elif finding.status == "confirmed":
        saved, words = finding.cost.value or 0.0, "without it a step is {} shorter"
    else:
        return ""
    return "" if diagnosis.are_alike(saved, told) else words.format(units.share(saved))


def _limits(run: RunSummary) -> Iterator[str]:
    """Yield what this run could not tell, and what would lift that."""
    yield from verdict.limits(run)
    shown = _measured(run)
    if BASELINE in run.modes:
        # The caveat says itself that speedups are unknown where other processes took cores.
        parallel = {
            name: mode.speedup
            for name, mode in shown.items()
            if not standing.is_baseline(name) and not (mode.speedup.reason or "").startswith(OTHERS_USED)
        }
        yield from _unknown("speedup", shown, parallel)
    yield from _withheld(run)
    yield from _started_one_rank(shown)
    unsteady = [mode_label(name) for name, mode in shown.items() if mode.warmup_steady is False]
    if unsteady:
        yield f"Warm-up never became steady: {listed(unsteady)}."
    batches = {name: mode.batch.global_ for name, mode in shown.items() if mode.batch.global_}
    if batches and max(batches.values()) > ANOTHER_BATCH * min(batches.values()):
        sizes = listed([f"{mode_label(name)} {batch_text(size)}" for name, size in batches.items()])
        yield f"Global batches differ ({sizes} samples per step): throughput is not time to accuracy."


def _hints(run: RunSummary) -> Iterator[str]:
    """Yield what another script or other options would have told."""
    shown = _measured(run)
    yield from _unknown("epoch", shown, {name: mode.epoch_s for name, mode in shown.items()})
    rates = [mode.throughput for mode in shown.values() if mode.throughput.low is not None]
    if rates and all(rate.scope == "run" for rate in rates):
        yield "Intervals are within one launch; --repeat 3 shows how much launches differ."


def _measured(run: RunSummary) -> dict[str, ModeSummary]:
    return {name: mode for name, mode in standing.shown_modes(run).items() if mode.status != "inactive"}


def _withheld_as(run: RunSummary, why: str) -> list[Inconclusive]:
    """Return the checks that found something that is not told as a finding, for this reason."""
    return [one for one in run.inconclusive if one.reason.startswith(why.partition("{}")[0])]


def _title(check: Inconclusive) -> str:
    """Return a check's title; of one that is unknown here its name."""
    return BY_NAME[check.rule].title if check.rule in BY_NAME else check.rule


def _withheld(run: RunSummary) -> Iterator[str]:
    """Yield which checks found something that dpdoctor's own cost may be."""
    told = by_reason((f"{_title(one)} ({one.mode})", one.reason) for one in _withheld_as(run, OURS))
    yield from (sentence(f"Found, and not told as a finding: {labels}; {reason}") for reason, labels in told.items())


def _started_one_rank(modes: Mapping[str, ModeSummary]) -> Iterator[str]:
    """Yield that a launcher that was asked for several ranks, or whose baseline has a count of one, started one."""
    baseline = modes.get(BASELINE)
    is_compared = baseline is not None and baseline.native is not None
    also = ", as the baseline is" if is_compared else ""
    for name, mode in modes.items():
        if name == BASELINE or mode.native is None or mode.world_size > 1:
            continue
        if is_compared or mode.native.asks_for_several:
            command = clipped(shlex.join(mode.native.launcher), LONGEST_REMEDY)
            yield f"{capital(mode_label(name))} is one rank{also}: `{command}` started no second one."


def _unknown(what: str, modes: Mapping[str, ModeSummary], figures: Mapping[str, Figure]) -> Iterator[str]:
    """Yield why a figure of modes that were measured is unknown, each reason once."""
    missing = {
        name: figure.reason
        for name, figure in figures.items()
        if figure.value is None and figure.reason and modes[name].throughput.value is not None
    }
    told = by_reason((mode_label(name), reason) for name, reason in missing.items())
    yield from (sentence(f"No {what} of {labels}: {reason}") for reason, labels in told.items())
