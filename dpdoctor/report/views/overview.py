"""The first screen: the answer, what went wrong, every mode, and what to change first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, Figure, ModeSummary, RunSummary
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.report.blocks import (
    Answer,
    Bar,
    BarTable,
    Block,
    Callout,
    Cell,
    Column,
    Columns,
    Fold,
    Limits,
    Paragraph,
    Piece,
    Table,
    View,
)
from dpdoctor.report.text import (
    NOTHING,
    batch_text,
    capital,
    figure_cell,
    figure_text,
    interval_words,
    listed,
    listed_figures,
    mode_label,
    sentence,
    short_interval,
    status_tone,
)
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.traces.words import stragglers
from dpdoctor.report.words import standing, verdict
from dpdoctor.report.words.first_screen import FirstScreen, ModeRow, first_screen, ranking
from dpdoctor.report.words.step_parts import LABELS

# A narrower part of the longest step has no room for its own number; hovering has it.
LABELLED_RATIO = 0.08
# A smaller part of a step is not drawn.
LEAST_PIECE = 0.005
MODE_COLUMNS = (
    Column(title="Mode"),
    Column(title="samples/s", numeric=True),
    Column(title="Speedup", numeric=True),
    Column(title="Efficiency", numeric=True),
)

COLUMNS = (
    Column(title="Mode"),
    Column(title="Status"),
    Column(title="Throughput", numeric=True),
    Column(title="Step", numeric=True),
    Column(title="Speedup", numeric=True),
    Column(title="Of linear", numeric=True),
    Column(title="Epoch", numeric=True),
    Column(title="Global batch", numeric=True),
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return the answer, what failed, the modes beside what to change, the limits, and the table of modes."""
    summary = analysis.summary
    screen = first_screen(summary)
    points = (*screen.limits, *stragglers(analysis), *screen.hints, *_meaning(summary))
    limits = [Limits(title="Limits of this run", points=points)] if points else []
    beside: list[Block] = [*_modes(screen), *ranking(screen)]
    return [
        _answer(summary, screen),
        *_troubles(summary),
        *([Columns(blocks=(*beside, *limits))] if beside else limits),
        Fold(title="All figures of the modes", blocks=(*_details(summary), modes_table(summary))),
    ]


def _answer(summary: RunSummary, screen: FirstScreen) -> Answer:
    return Answer(
        tone=screen.tone,
        label=screen.bound_by,
        sentence=screen.answer,
        do_first=screen.do_first,
        figures=tuple(_figures(summary)),
    )


def _figures(summary: RunSummary) -> Iterator[tuple[str, str, str]]:
    """Yield the mode that leads, its speedup and its efficiency; where several lead, only which they are."""
    leading = standing.leaders(summary)
    if not leading:
        return
    rates = listed_figures([mode.throughput for mode in leading.values()])
    word = "Mode" if any(map(standing.is_baseline, leading)) else "Fastest parallel mode"
    yield (
        (word if len(leading) == 1 else "Parallel modes, no measurable difference"),
        listed([*map(mode_label, leading)]),
        rates,
    )
    for name, mode in leading.items() if len(leading) == 1 else ():
        if not standing.is_baseline(name) and mode.speedup.value is not None:
            doubt = ", may be none" if standing.against_one(mode.speedup) == "alike" else ""
            yield f"Speedup on {standing.devices(mode)}", figure_text(mode.speedup), f"{_interval(mode.speedup)}{doubt}"
            efficiency = standing.linear(mode)
            if efficiency is not None and efficiency.value is not None:
                yield "Scaling efficiency", units.share(efficiency.value), "of linear"


def _interval(figure: Figure) -> str:
    return f"95% CI {short_interval(figure)}" if short_interval(figure) else "no interval"


def _modes(screen: FirstScreen) -> Iterator[BarTable]:
    """Yield the modes that have figures, each with its step as a bar, on one scale."""
    rows = [row for row in screen.modes if row.step is not None]
    longest = max((row.step.value or 0.0 for row in rows if row.step), default=0.0)
    if not rows or not longest:
        return
    is_marked = screen.linear is not None and screen.linear <= longest
    keys = {part.key for row in rows for part in row.parts if part.share >= LEAST_PIECE}
    yield BarTable(
        title="Throughput and step time by mode",
        caption="Global samples per second. Hover over a share of a step for its source.",
        columns=MODE_COLUMNS,
        last="Time per step",
        rows=tuple(_bar(row, longest) for row in screen.modes),
        legend=tuple((key, label) for key, label in LABELS.items() if key in keys),
        mark=screen.linear / longest if is_marked and screen.linear is not None else None,
        mark_text=f"linear scaling, {units.seconds(screen.linear)}" if is_marked and screen.linear else "",
    )


def _bar(row: ModeRow, longest: float) -> Bar:
    head = Cell(text=mode_label(row.name), note=row.runs_on)
    if row.step is None or row.throughput is None:
        return Bar(
            cells=(head, *[Cell(text=NOTHING)] * 3), pieces=(), end=sentence(capital(f"{row.status}: {row.note}"))
        )
    size = row.step.value or 0.0
    return Bar(
        cells=(
            head,
            Cell(
                text=figure_text(row.throughput).removesuffix(" samples/s"),
                note=row.interval,
                sort=row.throughput.value,
            ),
            Cell(text=row.note or NOTHING) if row.speedup is None else _factor(row.speedup),
            Cell(text=NOTHING)
            if row.efficiency is None or row.efficiency.value is None
            else Cell(text=units.share(row.efficiency.value), sort=row.efficiency.value),
        ),
        pieces=tuple(
            Piece(
                key=part.key,
                share=part.share * size / longest,
                text=part.shown if part.share * size / longest >= LABELLED_RATIO else "",
                title=f"{LABELS[part.key]} {part.shown}: {part.text}",
            )
            for part in row.parts
            if part.share >= LEAST_PIECE
        ),
        end=figure_text(row.step),
    )


def _factor(figure: Figure) -> Cell:
    return Cell(text=figure_text(figure), note=short_interval(figure), sort=figure.value)


def _troubles(summary: RunSummary) -> Iterator[Callout]:
    for alike in standing.ended_badly(summary, but=("inactive",)):
        name, mode = next(iter(alike.items()))
        found = verdict.mode_verdict(name, mode)
        labels, word = listed([*map(mode_label, alike)]), "failed" if mode.status == "ok" else mode.status
        reason = sentence(standing.why_badly(alike) or mode.reason or "No reason was recorded")
        yield Callout(tone=found.tone, title=f"{labels}: {word}", text=reason, lines=mode.stderr_tail)


def _caption(summary: RunSummary) -> str:
    return f"Every mode of this run. {interval_words(standing.shown_modes(summary))}".rstrip()


def modes_table(summary: RunSummary) -> Table:
    """Return every mode in one table, on the first screen and wherever else a run is shown in short."""
    return Table(caption=_caption(summary), columns=COLUMNS, rows=tuple(_row(*item) for item in summary.modes.items()))


def _row(name: str, mode: ModeSummary) -> tuple[Cell, ...]:
    failed = mode.status == "ok" and why_withheld(mode) is not None
    head = (Cell(text=mode_label(name), note=_ranks(mode)), _status("failed" if failed else mode.status, mode))
    if why_withheld(mode) is not None:
        return (*head, *(Cell(text=NOTHING) for _ in COLUMNS[len(head) :]))
    return (
        *head,
        figure_cell(mode.throughput),
        figure_cell(mode.step),
        _compared(name, mode, mode.speedup),
        _compared(name, mode, standing.linear(mode)),
        figure_cell(mode.epoch_s),
        Cell(
            text=batch_text(mode.batch.global_),
            note=f"{batch_text(mode.batch.per_device)} per device",
            sort=mode.batch.global_,
        ),
    )


def _ranks(mode: ModeSummary) -> str:
    ranks = standing.ranks(mode)
    return f"{ranks}, {mode.backend}" if mode.backend else ranks


def _status(status: str, mode: ModeSummary) -> Cell:
    note = "warm-up never became steady" if mode.warmup_steady is False else ""
    return Cell(text=status, note=note, tone=status_tone(status))


def _compared(name: str, mode: ModeSummary, figure: Figure | None) -> Cell:
    if standing.is_baseline(name):
        return Cell(text=NOTHING, note="the baseline")
    if mode.status == "inactive":
        return Cell(text=NOTHING, note="not compared")
    return Cell(text=NOTHING, note="one device") if figure is None else figure_cell(figure)


def _meaning(summary: RunSummary) -> Iterator[str]:
    """Yield how much was remarked on the script, and where that stands."""
    remarks = sum(len(mode.conversion.warnings) for mode in summary.modes.values() if mode.conversion)
    if remarks:
        yield f"Watching the script gave {units.count(remarks, 'remark')}; see “Run details”."


def _details(summary: RunSummary) -> Iterator[Paragraph]:
    """Yield the run in a sentence, with what its speedup rests on, and what samples were counted from."""
    said = verdict.headline(summary)
    sources = sorted({mode.batch.source for mode in standing.shown_modes(summary).values() if mode.batch.global_})
    counted = [f"Samples were counted from: {', '.join(sources)}."] if sources else []
    yield from (Paragraph(text=text) for text in (said.sentence, said.detail, *counted) if text)


VIEW: View[Diagnosis] = View(name="overview", title="", build=build, applies=is_profile)
