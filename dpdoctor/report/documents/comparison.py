"""The document of a comparison: its views, and the sections in the order in which they are read.

Every figure of every mode stands run beside run, and what measurably changed is told first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import ALL_PHASES, TRACE_MODE, Figure
from dpdoctor.analysis.comparison import (
    Change,
    Comparison,
    FindingComparison,
    FindingState,
    FindingVerdict,
    ModeComparison,
)
from dpdoctor.report.blocks import (
    Absent,
    Badge,
    Block,
    Callout,
    Card,
    Cell,
    Chart,
    Column,
    Document,
    Fold,
    Lines,
    Paragraph,
    Section,
    Table,
    View,
)
from dpdoctor.report.comparison import verdict
from dpdoctor.report.comparison.rows import (
    FINDING_TONES,
    FINDING_WORDS,
    LONGEST_VALUE,
    ablation_rows,
    against,
    budget_rows,
    changed,
    differing,
    fact_table,
    figure_table,
    finding_cost,
    finding_text,
    main_rows,
    of_modes,
    other_figures,
    phase_rows,
    run_name,
    secondary_rows,
    signed_interval,
    title_of,
)
from dpdoctor.report.comparison.verdict import NOT_ACCURACY, remarks
from dpdoctor.report.documents import assembly
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import Bar, Part, StackedBar, interval_bars, share_bars
from dpdoctor.report.text import NOTHING, absent, figure_text, mode_label, name_cell, sentence, short_interval
from dpdoctor.report.traces.words import PART_WORDS
from dpdoctor.report.views.breakdown import PART_COLORS
from dpdoctor.report.views.phases import COLORS
from dpdoctor.report.words import diagnosis
from dpdoctor.report.words.step_parts import phase_words
from dpdoctor.rules import BY_NAME
from dpdoctor.version import __version__

COLUMNS = (Column(title="Run"), Column(title="Directory"), Column(title="Created"))


def _overview(comparison: Comparison) -> Sequence[Block]:
    """Return the verdicts, what they rest on, the figures that decide and which runs these are."""
    main = of_modes(comparison, main_rows)
    return [
        *verdict.verdicts(comparison),
        Paragraph(text=verdict.evidence(comparison)),
        *([figure_table(comparison, "What each run gives, with 95% intervals.", main)] if main else []),
        *_remarks(comparison),
        _runs(comparison),
    ]


def _remarks(comparison: Comparison) -> Iterator[Block]:
    found = remarks(comparison)
    for remark in found:
        if remark.grave:
            yield Callout(tone="warn", title=remark.title, text=remark.text)
        else:
            yield Paragraph(text=sentence(f"{remark.title}: {remark.text}"))
    if not any(NOT_ACCURACY in remark.text for remark in found):
        yield Paragraph(text="Throughput is global samples per second; it is not time to accuracy.")


def _runs(comparison: Comparison) -> Table:
    return Table(
        caption="What is compared; the first run is the base.",
        columns=COLUMNS,
        rows=tuple(
            (
                Cell(text=run.label, note="" if place else "the base"),
                name_cell(run.path, LONGEST_VALUE),
                Cell(text=run.created, note=f"dpdoctor {run.dpdoctor}"),
            )
            for place, run in enumerate(comparison.runs)
        ),
    )


OVERVIEW: View[Comparison] = View(name="overview", title="Verdict", build=_overview)


def _throughput(comparison: Comparison) -> Sequence[Block]:
    """Return bars by mode and run, why some are missing, and the figures beside throughput and step as a table."""
    if {*comparison.modes} <= {TRACE_MODE}:
        return [Absent(what="Throughput", reason="the traces hold no measured windows")]
    bars = [*_throughput_bars(comparison)]
    others = of_modes(comparison, other_figures)
    return [
        *([_throughput_chart(bars)] if bars else []),
        *absent(_missing(comparison)),
        *([figure_table(comparison, "Other figures of each mode.", others)] if others else []),
    ]


def _throughput_chart(bars: Sequence[Bar]) -> Block:
    return interval_bars(
        title="Samples per second, by mode and run",
        bars=bars,
        x_title="over all devices",
        how_to_read="Longer is better; a colour is a run. Whisker: 95% interval.",
    )


def _throughput_bars(comparison: Comparison) -> Iterator[Bar]:
    for name, mode in comparison.modes.items():
        figures = mode.figures["throughput"].figures if name != TRACE_MODE else ()
        for place, figure in enumerate(figures):
            if figure.value is not None:
                color = charts.SERIES_COLORS[place % len(charts.SERIES_COLORS)]
                yield Bar(name=f"{mode_label(name)}, {comparison.runs[place].label}", figure=figure, color=color)


def _missing(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for name, mode in comparison.modes.items():
        figures = mode.figures["throughput"].figures if name != TRACE_MODE else ()
        for run, figure in zip(comparison.runs, figures, strict=False):
            if figure.value is None:
                yield f"{mode_label(name)} in {run.label}", figure.reason or "no reason was recorded"


THROUGHPUT: View[Comparison] = View(name="throughput", title="Throughput", build=_throughput)


CHANGES_MEANING = (
    "A change is reported only if its 95% interval excludes zero. Figures of which "
    "one run has too few values for an interval are never reported so; they stand in the sections below."
)


def _changes(comparison: Comparison) -> Sequence[Block]:
    """Return the figures that changed, besides throughput and step, and how many would by chance."""
    return [*_changed(comparison), Paragraph(text=f"{CHANGES_MEANING} {verdict.chance(comparison)}".rstrip())]


def _changed(comparison: Comparison) -> Iterator[Block]:
    found = changed(secondary_rows(comparison))
    if found:
        yield figure_table(comparison, "Figures that measurably changed, besides throughput and step.", found)
    else:
        text = f"{'; '.join(against(comparison))}: phases, time breakdown, ablations and the other figures."
        yield Callout(tone="plain", title="Nothing else is measurably different", text=text)


CHANGES: View[Comparison] = View(name="changes", title="What changed", build=_changes)


FINDINGS_MEANING = (
    "Costs are shares of a step of the mode, or of an epoch where it says so. What an experiment refuted in a run "
    "counts as not there. Gone means that the rule looked and found nothing; where it could not look, it cannot tell."
)


def _findings(comparison: Comparison) -> Sequence[Block]:
    """Return every finding with its cost in each run, and what to do about those that appeared."""
    if not comparison.findings:
        return [Absent(what="Findings", reason="no rule found anything in any of these runs")]
    return [_table(comparison), *_cards(comparison), Paragraph(text=FINDINGS_MEANING)]


def _table(comparison: Comparison) -> Table:
    return Table(
        caption="Findings with their costs and 95% intervals, in the order of the first run.",
        columns=(
            Column(title="Finding"),
            *(Column(title=run.label, numeric=True) for run in comparison.runs),
            *(Column(title=title, numeric=True) for title in against(comparison)),
        ),
        rows=tuple(_row(found) for found in comparison.findings),
    )


def _row(found: FindingComparison) -> tuple[Cell, ...]:
    title = BY_NAME[found.rule].title if found.rule in BY_NAME else found.rule
    of = "" if found.of == "step" else f", of {diagnosis.OF_WORDS[found.of]}"
    return (
        Cell(text=title, note=f"{mode_label(found.mode)}, {found.rule}{of}"),
        *(_state(state) for state in found.runs),
        *(_change(*both) for both in zip(found.changes, found.cost.changes, strict=True)),
    )


def _change(what: FindingVerdict, cost: Change) -> Cell:
    return Cell(
        text=NOTHING if what == "absent" else FINDING_WORDS[what],
        note=signed_interval(cost.difference),
        tone=FINDING_TONES.get(what, "plain"),
    )


def _state(state: FindingState) -> Cell:
    if state.finding is None:
        return Cell(text=finding_text(state), footnote=state.reason or "")
    if state.finding.status == "refuted":
        return Cell(text=finding_text(state))
    notes = (short_interval(state.finding.cost), state.finding.status)
    return Cell(text=finding_text(state), note=", ".join(filter(None, notes)), footnote=state.finding.cost.reason or "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cards(comparison: Comparison) -> Iterator[Card]:
    """Yield what appeared in a run after the first, with what to do about it."""
    for found in comparison.findings:
        for run, state, change in zip(comparison.runs[1:], found.runs[1:], found.changes, strict=True):
            if change == "appeared" and state.finding is not None:
                yield _card(run.label, state)


def _card(label: str, state: FindingState) -> Card:
    finding = state.finding
    assert finding is not None
    return Card(
        tone="warn" if finding.severity != "info" else "muted",
        title=_capital(finding.title),
        badges=(Badge(text=f"appeared in {label}", tone="warn"), Badge(text=mode_label(finding.mode))),
        points=tuple(sentence(_capital(fact)) for fact in finding.evidence),
        pairs=(
            ("Cost", finding_cost(state)),
            *((("Do", sentence(_capital(finding.remedy))),) if finding.remedy else ()),
            *((("In your script", finding.line),) if finding.line else ()),
        ),
        code=finding.code or "",
    )


FINDINGS: View[Comparison] = View(name="findings", title="Findings", build=_findings)


PHASE_PARTS = [Part(key=phase, name=phase_words(phase), colors=COLORS[phase]) for phase in ALL_PHASES]

PHASES_CAPTION = "Host time per step by phase, with 95% intervals. Phases that take no time in any run are left out."


def _phases(comparison: Comparison) -> Sequence[Block]:
    """Return by mode the phases of each run as bars of one scale, and all of them as a table."""
    if {*comparison.modes} <= {TRACE_MODE}:
        return [Absent(what="Phases", reason="traces alone do not hold them")]
    charts = [chart for name, mode in comparison.modes.items() for chart in _phases_chart(comparison, name, mode)]
    every = of_modes(comparison, phase_rows)
    if not every:
        return [Absent(what="Phases", reason="no run has a mode of which they were measured")]
    return [*charts, figure_table(comparison, PHASES_CAPTION, every)]


def _phases_chart(comparison: Comparison, name: str, mode: ModeComparison) -> Iterator[Chart]:
    """Yield the bars of one mode, as shares of the step of the first run that has it."""
    columns = [{phase: mode.phases[phase].figures[place] for phase in mode.phases} for place in range(len(mode.states))]
    known = [(run.label, found) for run, found in zip(comparison.runs, columns, strict=True) if _total(found) > 0]
    if not known:
        return
    first, of_first = known[0]
    whole = _total(of_first)
    yield share_bars(
        title=f"{mode_label(name)}: one step on the host",
        whole=f"the host's step in {first}",
        rows=[_bar(f"Run {label}", found, whole) for label, found in known],
        parts=PHASE_PARTS,
        how_to_read=f"A bar is one step; all are on the scale of {first}'s, so a shorter bar is a faster step.",
        is_full=False,
    )


def _total(phases: dict[str, Figure]) -> float:
    return sum(figure.value or 0.0 for figure in phases.values())


def _bar(name: str, phases: dict[str, Figure], whole: float) -> StackedBar:
    return StackedBar(
        name=name,
        ratios={phase: (figure.value or 0.0) / whole for phase, figure in phases.items()},
        amounts={phase: figure_text(figure) for phase, figure in phases.items()},
    )


PHASES: View[Comparison] = View(name="phases", title="Where a step goes", build=_phases)


BREAKDOWN_PARTS = [Part(key=key, name=name, colors=PART_COLORS[key]) for key, name in PART_WORDS.items()]
BREAKDOWN_CAPTION = "Shares of the traced steps. What takes no time in any run is left out."
BREAKDOWN_MEANING = (
    "Shares of the traced steps over all devices of the mode, from one launch. A profiler slows what it watches, the "
    "host most, so compare shares and take durations from the measured windows. A change is in points of the step."
)


def _breakdown(comparison: Comparison) -> Sequence[Block]:
    """Return the five parts as bars, by mode and run, and with the causes of idle as a table."""
    every = of_modes(comparison, budget_rows)
    if not every:
        return [Absent(what="Time breakdown", reason="no run left a trace of a mode that may be compared")]
    chart = share_bars(
        title="The time of the devices",
        whole="the traced steps",
        rows=[*_breakdown_bars(comparison)],
        parts=BREAKDOWN_PARTS,
        how_to_read="A bar is all of the devices' time. Communication is only what nothing hid.",
    )
    return [chart, figure_table(comparison, BREAKDOWN_CAPTION, every), Paragraph(text=BREAKDOWN_MEANING)]


def _breakdown_bars(comparison: Comparison) -> Iterator[StackedBar]:
    for name, mode in comparison.modes.items():
        for place, run in enumerate(comparison.runs):
            shares = {key: found.figures[place].value for key, found in mode.budget.items() if key in PART_WORDS}
            ratios = {key: share for key, share in shares.items() if share is not None}
            if ratios:
                words = {key: f"{units.share(share)} of the step" for key, share in ratios.items()}
                yield StackedBar(name=f"{mode_label(name)}, {run.label}", ratios=ratios, amounts=words)


BREAKDOWN: View[Comparison] = View(name="breakdown", title="Where the devices' time goes", build=_breakdown)


ABLATIONS_MEANING = (
    "An ablation switches something off in windows between the full ones; its gain is the time that this takes of a "
    "step. A smaller gain means that less time is lost to it."
)


def _ablations(comparison: Comparison) -> Sequence[Block]:
    """Return the gains as a table; nothing where no run knows one."""
    every = of_modes(comparison, ablation_rows)
    if not every:
        return []
    return [
        figure_table(comparison, "Seconds per step that each ablation gains.", every),
        Paragraph(text=ABLATIONS_MEANING),
    ]


ABLATIONS: View[Comparison] = View(name="ablations", title="What ablations gain", build=_ablations)


COUNTERS_MEANING = (
    "Counted in one profiled step after warm-up, on one rank. They are the same in every step and on any machine, so "
    "any difference is a change of what the step does. Operators of a dataset count "
    "where the training process fetches its batches itself, not where processes of a loader do."
)


def _counters(comparison: Comparison) -> Sequence[Block]:
    """Return by mode the counters that differ, and behind a fold those that do not."""
    counted = {name: mode for name, mode in comparison.modes.items() if mode.counters}
    if not counted:
        return [Absent(what="Counters", reason="no run counted a step of a mode that may be compared")]
    blocks = [block for name, mode in counted.items() for block in _mode(comparison, name, mode)]
    return [*blocks, Paragraph(text=COUNTERS_MEANING)]


def _mode(comparison: Comparison, name: str, mode: ModeComparison) -> Iterator[Block]:
    label, others = mode_label(name), differing(mode.counters)
    alike = [fact for fact in mode.counters if fact not in others]
    if others:
        yield fact_table(comparison, f"{label}: counters of one step that differ.", others)
    else:
        yield Paragraph(text=f"{label}: no counter of a step is known to differ.")
    if alike:
        table = fact_table(comparison, f"{label}: counters of one step.", alike)
        yield Fold(title=f"{label}: counters that do not differ or are not known of all runs", blocks=(table,))


COUNTERS: View[Comparison] = View(name="counters", title="Counters", build=_counters)


OF_TRACES = (
    "Of a run made of traces these are the machine and versions that read them, not those that were traced; its script "
    "is where the traces lie."
)


def _environment(comparison: Comparison) -> Sequence[Block]:
    """Return what differs, what does not behind a fold, and each run's command."""
    commands = [Lines(caption=f"How {run.label} was made", lines=(shlex.join(run.command),)) for run in comparison.runs]
    return [*_facts(comparison), *commands]


def _facts(comparison: Comparison) -> Iterator[Block]:
    others = differing(comparison.environment)
    alike = [fact for fact in comparison.environment if fact not in others]
    if any(run.of_traces for run in comparison.runs):
        yield Paragraph(text=OF_TRACES)
    if others:
        yield fact_table(comparison, "What differs.", others)
    else:
        yield Paragraph(text="Script, arguments, machine and versions are not known to differ.")
    yield Fold(
        title="What does not differ or is not known of all runs", blocks=(fact_table(comparison, "The rest.", alike),)
    )


ENVIRONMENT: View[Comparison] = View(name="environment", title="Environment", build=_environment)


SECTIONS: tuple[Section[Comparison], ...] = (
    Section(name="summary", title="Summary", views=(OVERVIEW,)),
    Section(name="what-changed", title="What changed", views=(CHANGES, FINDINGS)),
    Section(
        name="step-time",
        title="Step time",
        views=(THROUGHPUT, PHASES, BREAKDOWN, ABLATIONS),
    ),
    Section(name="run-details", title="Run details", views=(COUNTERS, ENVIRONMENT)),
)


def of_comparison(comparison: Comparison) -> Document:
    """Return the document of runs side by side."""
    parts = assembly.parts(SECTIONS, comparison)
    return Document(
        title=title_of(comparison),
        origin=[f"{run.label}: {run_name(run)}, {run.created}" for run in comparison.runs],
        parts=parts,
        modes=assembly.shown_modes(parts, comparison.modes),
        focus="",
        written=f"dpdoctor {__version__}, comparison schema {comparison.schema}",
        data=msgspec.to_builtins(comparison),
        file_name="comparison.json",
    )
