"""A run's answer in short and in plain text: what a pull-request comment and a notebook are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from dpdoctor.analysis import Diagnosis, RunSummary
from dpdoctor.report.blocks import Cell, Column, Headline, Table
from dpdoctor.report.text import THROUGHPUT_WORDS, remarks, sentence
from dpdoctor.report.traces.traced import TracedMode, is_trace_run, traced_modes
from dpdoctor.report.traces.words import (
    FIRST_FIGURE,
    HEADS,
    device_rows,
    devices_left_out,
    late_steps,
    read_in_part,
    reading_notes,
    stragglers,
    trace_headline,
    unreadable,
)
from dpdoctor.report.views.overview import modes_table
from dpdoctor.report.words import standing, verdict
from dpdoctor.report.words.diagnosis import Bottleneck, costliest, left_to_the_report
from dpdoctor.report.words.first_screen import first_screen


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What gave no figures and why, in a sentence, with the last lines that were printed there."""

    tone: str
    sentence: str
    lines: tuple[str, ...] = ()


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A run in short. Text from the run is in it as it was recorded; whoever shows it must escape it.

    Attributes:
        tables: of the modes or, of traces alone, of the devices.
        bottlenecks: the costliest.
        late: who keeps whom waiting.
        remarks: on how the script was wrapped or the traces were read.
        notes: how to read the figures, and how much more the report has.
    """

    verdict: Headline
    tables: tuple[Table, ...]
    bottlenecks: tuple[Bottleneck, ...]
    late: tuple[str, ...]
    troubles: tuple[Trouble, ...]
    remarks: tuple[str, ...]
    notes: tuple[str, ...]


def brief(analysis: Diagnosis) -> Brief:
    """Return the run in short."""
    return _of_traces(analysis) if is_trace_run(analysis) else _of_profile(analysis)


def troubles(summary: RunSummary) -> Iterator[Trouble]:
    """Yield what was not measured and why, then every mode that did not end well."""
    yield from (Trouble(tone="plain", sentence=text) for text in verdict.limits(summary))
    yield from of_modes(summary)


def of_modes(summary: RunSummary, *, but: Collection[str] = ()) -> Iterator[Trouble]:
    """Yield every mode that did not end well, `but` for those of some statuses; those that failed alike together."""
    for alike in standing.ended_badly(summary, but=but):
        name, mode = next(iter(alike.items()))
        found = verdict.mode_verdict(name, mode, alike=alike)
        yield Trouble(tone=found.tone, sentence=found.sentence, lines=mode.stderr_tail)


def _of_profile(analysis: Diagnosis) -> Brief:
    run = analysis.summary
    screen = first_screen(run)
    answer = f"{screen.bound_by}: {screen.answer}" if screen.bound_by else screen.answer
    return Brief(
        verdict=Headline(
            tone=screen.tone, sentence=answer, detail=f"Do first: {screen.do_first}" if screen.do_first else ""
        ),
        tables=(modes_table(run),),
        bottlenecks=tuple(costliest(run)),
        late=tuple(stragglers(analysis)),
        troubles=tuple(troubles(run)),
        remarks=tuple(sentence(f"{labels}: {remark}") for remark, labels in remarks(run.modes).items()),
        notes=(THROUGHPUT_WORDS, *_more(left_to_the_report(run))),
    )


def _of_traces(analysis: Diagnosis) -> Brief:
    run, modes = analysis.summary, traced_modes(analysis)
    failed = unreadable(run)
    return Brief(
        verdict=trace_headline(analysis),
        tables=tuple(map(_devices_table, modes)),
        bottlenecks=tuple(costliest(run)),
        late=(),  # the verdict has it
        troubles=tuple(Trouble(tone="bad", sentence=sentence(clause), lines=lines) for clause, lines in failed),
        remarks=tuple(text for mode in modes for text in _trace_remarks(mode)),
        notes=tuple(_more(left_to_the_report(run))),
    )


def _more(text: str) -> Iterator[str]:
    if text:
        yield text


def _devices_table(mode: TracedMode) -> Table:
    more = devices_left_out(mode)
    caption = "Every device: shares of its whole steps or, where there is none, of the whole trace."
    return Table(
        caption=f"{caption} {more}".rstrip(),
        columns=tuple(Column(title=head, numeric=place >= FIRST_FIGURE) for place, head in enumerate(HEADS)),
        rows=tuple(tuple(Cell(text=text) for text in row) for row in device_rows(mode)),
    )


def _trace_remarks(mode: TracedMode) -> Iterator[str]:
    yield from read_in_part(mode)
    yield from reading_notes(mode)
    yield from late_steps(mode)
