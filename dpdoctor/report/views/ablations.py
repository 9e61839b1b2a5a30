"""What a step gains when something is taken away from it, and whether the trace says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpdoctor.analysis import AblationSummary, CrossCheck, Diagnosis, Figure, ModeSummary
from dpdoctor.catalog import ABLATION_BY_NAME
from dpdoctor.report.blocks import Absent, Block, Callout, Cell, Chart, Column, Fold, Note, OfMode, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import Bar, interval_bars
from dpdoctor.report.text import (
    NOTHING,
    absent,
    amount_cell,
    figure_cell,
    mode_label,
    whole_cell,
    with_interval,
)
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

COLUMNS = (
    Column(title="Ablation"),
    Column(title="Gain per step", numeric=True),
    Column(title="Of the step", numeric=True),
    Column(title="Step without", numeric=True),
    Column(title="Rounds", numeric=True),
)
AGAINST = (
    Column(title="What takes the time"),
    Column(title="Seen", numeric=True),
    Column(title="Gained by the ablation", numeric=True),
    Column(title="Allowed difference", numeric=True),
    Column(title="Verdict"),
)
MEANING = (
    "Windows in which something is switched off lie between the full ones of the same run, in shuffled order, and are "
    "compared with the full window of their own round: what drifts in the course of a run falls out. Gains do not add "
    "up. An ablation is an experiment: its batches and weights are thrown away."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the gains as bars and table, what was skipped and why, and the trace against the ablations."""
    shown = standing.shown_modes(analysis.summary)
    with_ablations = {name: mode for name, mode in shown.items() if mode.ablations}
    if not with_ablations:
        return [Absent(what="Gains", reason="no ablation was run; --ablations all runs those that the script allows")]
    gains = [OfMode(mode=name, blocks=tuple(_mode(name, mode))) for name, mode in with_ablations.items()]
    return [*gains, Note(text=MEANING)]


def _mode(name: str, mode: ModeSummary) -> Iterator[Block]:
    yield from _disagreements(name, mode)
    known = {ablation: found for ablation, found in mode.ablations.items() if found.gain.value is not None}
    if known:
        yield _chart(name, known)
        yield Fold(title="All experiments", blocks=(_table(known),))
    found = [one for one in mode.cross_checks if one.gain.value is not None]
    if found:
        yield Fold(title="Against trace and timers", blocks=(_against(found),))
    skipped = {ablation: figures.gain.reason for ablation, figures in mode.ablations.items() if ablation not in known}
    yield from absent((ablation, reason or "no reason was recorded") for ablation, reason in skipped.items())


def _chart(name: str, known: Mapping[str, AblationSummary]) -> Chart:
    return interval_bars(
        title=f"{mode_label(name)}: what a step gains",
        x_title="of the step",
        bars=[Bar(name=ablation, figure=found.share, color=charts.GREEN) for ablation, found in known.items()],
        how_to_read="Whisker: 95% interval. A bar whose whisker crosses zero shows no gain.",
    )


def _table(known: Mapping[str, AblationSummary]) -> Table:
    return Table(
        caption="Gains over pairs of windows of one round, slowest rank; 95% intervals within this run.",
        columns=COLUMNS,
        rows=tuple(
            (
                Cell(text=ablation, note=_what(ablation)),
                figure_cell(found.gain),
                figure_cell(found.share),
                figure_cell(found.step),
                whole_cell(found.gain.n),
            )
            for ablation, found in known.items()
        ),
    )


def _against(found: Sequence[CrossCheck]) -> Table:
    return Table(
        caption="Ablation against trace and clock: they agree within 5% of the step or their 95% intervals.",
        columns=AGAINST,
        rows=tuple(
            (
                Cell(text=one.what, note=one.ablation),
                figure_cell(one.observed),
                figure_cell(one.gain),
                amount_cell(None if one.agrees is None else one.tolerance, "ratio", missing=NOTHING),
                _verdict(one),
            )
            for one in found
        ),
    )


def _verdict(one: CrossCheck) -> Cell:
    if one.agrees is None:
        return Cell(text="cannot tell", note=one.reason, tone="muted")
    return Cell(text="agree", tone="good") if one.agrees else Cell(text="disagree", tone="warn", note=_why(one))


def _why(one: CrossCheck) -> str:
    """Return what a disagreement means."""
    if _more(one.gain, one.observed):
        return "it also slows what runs beside it"
    return "something else takes its place when it goes"


def _more(a: Figure, b: Figure) -> bool:
    return (a.value or 0.0) > (b.value or 0.0)


def _what(name: str) -> str:
    return ABLATION_BY_NAME[name].what.replace("`", "") if name in ABLATION_BY_NAME else ""


def _disagreements(name: str, mode: ModeSummary) -> Iterator[Callout]:
    """Yield where seeing and taking away tell different things."""
    apart = [one for one in mode.cross_checks if one.agrees is False]
    if apart:
        told = (
            f"{one.ablation} gains {with_interval(one.gain)} of a step; {one.what}: {with_interval(one.observed)}. "
            f"Possibly {_why(one)}."
            for one in apart
        )
        yield Callout(
            tone="warn",
            title=f"{mode_label(name)}: what an ablation gains and what was seen disagree",
            text=" ".join(told),
        )


VIEW: View[Diagnosis] = View(
    name="ablations",
    title="Ablation experiments",
    build=build,
    applies=is_profile,
    is_half=True,
)
