"""The first screen: the answer, what went wrong, every mode, and what to change first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis import Analysis, Figure, ModeSummary, RunSummary
from dpdoctor.report import bottlenecks
from dpdoctor.report.blocks import Block, Callout, Cell, Chart, Column, Paragraph, Section, Table
from dpdoctor.report.drawing.throughput_bars import STEADY, throughput_bars
from dpdoctor.report.text import NOTHING, batch_text, figure_cell, interval_words, mode_label, sentence, status_tone
from dpdoctor.report.traces import verdict as trace_verdict
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import clauses, standing, verdict

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


def build(analysis: Analysis) -> Sequence[Block]:
    """Return the verdict, the troubles, the modes as bars, what to change first, and the table of modes."""
    summary = analysis.summary
    return [
        verdict.headline(summary),
        *_troubles(summary),
        *_bars(summary),
        *bottlenecks.first_cards(summary),
        *_other_verdicts(summary),
        *(Paragraph(text=text) for text in trace_verdict.stragglers(analysis)),
        modes_table(summary),
        *(Paragraph(text=text) for text in _meaning(summary)),
    ]


def _troubles(summary: RunSummary) -> Iterator[Callout]:
    for name, mode in summary.modes.items():
        found = verdict.mode_verdict(name, mode)
        if standing.why_withheld(mode) is not None or mode.status not in ("ok", "inactive"):
            label, word = mode_label(name), "failed" if mode.status == "ok" else mode.status
            reason = sentence(standing.why_withheld(mode) or mode.reason or "No reason was recorded")
            yield Callout(tone=found.tone, title=f"{label}: {word}", text=reason, lines=mode.stderr_tail)


def _other_verdicts(summary: RunSummary) -> Iterator[Paragraph]:
    """Yield sentences for the modes that neither the headline nor a callout has told of."""
    yield from (Paragraph(text=text) for text in verdict.limits(summary))
    leading = standing.leaders(summary)
    for name, mode in standing.shown_modes(summary).items():
        measured = mode.status == "ok" and mode.throughput.value is not None
        if name not in leading and (measured or mode.status == "inactive"):
            yield Paragraph(text=verdict.mode_verdict(name, mode).sentence)


def _bars(summary: RunSummary) -> Iterator[Chart]:
    measured = {name: mode for name, mode in standing.shown_modes(summary).items() if mode.throughput.value is not None}
    if measured:
        yield throughput_bars(measured, (STEADY,))


def _caption(summary: RunSummary) -> str:
    return f"Every mode of this run. {interval_words(standing.shown_modes(summary))}".rstrip()


def modes_table(summary: RunSummary) -> Table:
    """Return every mode in one table, on the first screen and wherever else a run is shown in short."""
    return Table(caption=_caption(summary), columns=COLUMNS, rows=tuple(_row(*item) for item in summary.modes.items()))


def _row(name: str, mode: ModeSummary) -> tuple[Cell, ...]:
    failed = mode.status == "ok" and standing.why_withheld(mode) is not None
    head = (Cell(text=mode_label(name), note=_ranks(mode)), _status("failed" if failed else mode.status, mode))
    if standing.why_withheld(mode) is not None:
        return (*head, *(Cell(text=NOTHING) for _ in COLUMNS[len(head) :]))
    return (
        *head,
        figure_cell(mode.throughput),
        figure_cell(mode.step),
        _compared(name, mode, mode.speedup),
        _compared(name, mode, clauses.linear(mode)),
        figure_cell(mode.epoch_s),
        Cell(
            text=batch_text(mode.batch.global_),
            note=f"{batch_text(mode.batch.per_device)} per device",
            sort=mode.batch.global_,
        ),
    )


def _ranks(mode: ModeSummary) -> str:
    ranks = clauses.ranks(mode)
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
    """Yield what the table's words mean, and where its rows must not be compared directly."""
    yield (
        "Throughput is global samples per second, over all devices. It is not time to accuracy: "
        "a larger global batch takes fewer optimizer steps per epoch and may need more epochs."
    )
    shown = standing.shown_modes(summary)
    yield from _batch_difference(shown)
    scaling = {clauses.scaling_words(mode) for name, mode in shown.items() if mode.num_devices > 1}
    yield from sorted(words for words in scaling if words not in verdict.headline(summary).detail)
    sources = sorted({mode.batch.source for mode in shown.values() if mode.batch.global_ is not None})
    if sources:
        yield f"Samples were counted from: {', '.join(sources)}."
    remarks = sum(len(mode.adoption.warnings) for mode in summary.modes.values() if mode.adoption)
    if remarks:
        yield f"Adopting the script gave {units.count(remarks, 'remark')}; see “What was done to the script”."


def _batch_difference(shown: dict[str, ModeSummary]) -> Iterator[str]:
    sizes = {name: mode.batch.global_ for name, mode in shown.items() if mode.batch.global_ is not None}
    if len({batch_text(size) for size in sizes.values()}) > 1:
        listed = ", ".join(f"{mode_label(name)} {batch_text(size)}" for name, size in sizes.items())
        yield f"The modes do not train on the same batch. Samples per step, all devices: {listed}."


SECTION = Section(order=10, title="Verdict", question="What did more devices give?", build=build, applies=is_profile)
