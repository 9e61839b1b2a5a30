"""What costs time, what to change, and what that would give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, Finding, RunSummary
from dpdoctor.report.blocks import Absent, Badge, Block, Callout, Card, Cell, Column, Fold, OfMode, Table, View
from dpdoctor.report.text import by_reason, capital, listed, mode_label, sentence
from dpdoctor.report.words import diagnosis, standing
from dpdoctor.rules import BY_NAME, Rule

STATUS_WORDS = {
    "confirmed": "Confirmed by an experiment inside the run or by a counter.",
    "inferred": "Inferred from timers or trace; no experiment in this run tests it.",
    "refuted": "The experiment says that removing it gains nothing, so it is not recommended.",
}
UNVERIFIED = "not verified on hardware"
# The view that draws what a rule is about.
SEEN_IN = {
    "accumulation_sync": "collectives",
    "amp_unused": "kernels",
    "buffer_broadcast": "collectives",
    "checkpoint_share": "steps",
    "cpu_oversubscription": "ablations",
    "data_starved": "loader",
    "device_idle": "breakdown",
    "dp_imbalance": "parallel",
    "dp_overhead": "parallel",
    "evaluation_share": "steps",
    "exposed_communication": "collectives",
    "find_unused_parameters": "conversion",
    "gc_pauses": "steps",
    "h2d_exposed": "breakdown",
    "host_sync": "breakdown",
    "inference_share": "steps",
    "launch_bound": "breakdown",
    "loader_gain": "loader",
    "memory_imbalance": "peak-memory",
    "memory_pressure": "peak-memory",
    "no_overlap": "collectives",
    "optimizer_unfused": "kernels",
    "own_code": "call_tree",
    "parallelism_not_worth_it": "waterfall",
    "replicas_differ": "conversion",
    "slow_warmup": "steps",
    "small_collectives": "collectives",
    "straggler": "ranks",
    "throttling": "samplers",
    "uneven_batches": "ranks",
    "unsharded_data": "conversion",
    "unsynchronised": "conversion",
}


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the findings, the costliest first; what was refuted, and what was not judged."""
    summary = analysis.summary
    if not standing.shown_modes(summary):
        return [Absent(what="Findings", reason="no mode was measured")]
    parts = diagnosis.parts(summary)
    return [
        *_quiet(summary, parts),
        *_fold(summary, "Findings, with evidence and cause", parts.costly),
        *_fold(summary, "Notes", parts.facts),
        *_fold(summary, "Tested, no gain", parts.refuted),
        *_inconclusive(summary),
    ]


def _quiet(summary: RunSummary, parts: diagnosis.Parts) -> Iterator[Block]:
    """Yield that nothing was found, and how much was looked at."""
    if parts.costly:
        return
    modes = units.count(len(standing.shown_modes(summary)), "mode")
    skipped = f"; {units.count(len(summary.inconclusive), 'check')} skipped" if summary.inconclusive else ""
    yield Callout(
        tone="plain" if summary.inconclusive else "good",
        title="Nothing to change",
        text=sentence(f"{units.count(len(BY_NAME), 'rule')} checked {modes}{skipped}"),
    )


def _fold(summary: RunSummary, title: str, findings: Sequence[Finding]) -> Iterator[Fold]:
    if findings:
        cards = [
            OfMode(mode=mode, blocks=tuple(_card(summary, found) for found in findings if found.mode == mode))
            for mode in dict.fromkeys(found.mode for found in findings)
        ]
        yield Fold(title=f"{title} ({len(findings)})", blocks=tuple(cards))


def _card(summary: RunSummary, finding: Finding) -> Card:
    rule = BY_NAME.get(finding.rule)
    return Card(
        tone="muted" if finding.status == "refuted" else diagnosis.SEVERITY_TONES[finding.severity],
        title=capital(finding.title),
        badges=tuple(_badges(finding, rule)),
        points=tuple(sentence(capital(fact)) for fact in finding.evidence),
        pairs=tuple(_pairs(finding)),
        code=finding.code or "",
        about=_about(rule) if rule else (),
        anchor=diagnosis.anchor(summary, finding),
        seen_in=SEEN_IN.get(finding.rule, ""),
    )


def _badges(finding: Finding, rule: Rule | None) -> Iterator[Badge]:
    yield Badge(text=mode_label(finding.mode))
    if finding.status != "refuted":
        yield Badge(text=finding.severity, tone=diagnosis.SEVERITY_TONES[finding.severity])
    yield Badge(text=finding.status, tone=diagnosis.STATUS_TONES[finding.status])
    if finding.ranks:
        yield Badge(text=f"{'rank' if len(finding.ranks) == 1 else 'ranks'} {listed([*map(str, finding.ranks)])}")
    if rule is not None and not rule.verified:
        yield Badge(text=UNVERIFIED)


def _pairs(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield cost, cause, what to do and what it would give; of a refuted finding there is nothing to do."""
    yield "Cost", diagnosis.cost_words(finding)
    yield "Status", STATUS_WORDS[finding.status]
    if finding.cause:
        yield "Cause", sentence(capital(finding.cause))
    if finding.remedy:
        yield "Do", sentence(capital(finding.remedy))
    if finding.no_remedy:
        yield "No remedy", sentence(capital(finding.no_remedy))
    if finding.line:
        yield "In your script", finding.line
    gain = diagnosis.gain_words(finding)
    if gain is not None and finding.status != "refuted":
        yield "Speedup", gain


def _about(rule: Rule) -> tuple[tuple[str, str], ...]:
    verified = "" if rule.verified else f" This rule is {UNVERIFIED}."
    return (
        ("What.", rule.what),
        ("Why.", rule.why),
        ("How it is measured.", rule.how + verified),
        ("Remedy.", rule.remedy),
    )


def _inconclusive(summary: RunSummary) -> Iterator[Fold]:
    """Yield the questions that could not be answered, each reason once."""
    if not summary.inconclusive:
        return
    rows = []
    for rule in dict.fromkeys(item.rule for item in summary.inconclusive):
        reasons = ((mode_label(item.mode), item.reason) for item in summary.inconclusive if item.rule == rule)
        title = BY_NAME[rule].title if rule in BY_NAME else rule
        rows += [
            (Cell(text=rule, note=title), Cell(text=modes), Cell(text=sentence(capital(reason))))
            for reason, modes in by_reason(reasons).items()
        ]
    table = Table(
        caption="What these rules would say is unknown.",
        columns=(Column(title="Rule"), Column(title="Mode"), Column(title="Why it cannot tell")),
        rows=tuple(rows),
    )
    yield Fold(title=f"{units.count(len(rows), 'check')} skipped", blocks=(table,))


VIEW: View[Diagnosis] = View(name="findings", title="", build=build)
