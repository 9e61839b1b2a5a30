"""From linear scaling to what was measured: what is lost on the way, and to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import WATERFALL_TERMS, Diagnosis, Figure, ModeSummary, Waterfall
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.analysis.waterfall import told_apart
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Note, OfMode, Paragraph, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import (
    NOTHING,
    absent_of,
    amount_cell,
    figure_cell,
    figure_text,
    listed,
    mode_label,
    sentence,
    with_interval,
)
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

TERM_WORDS = {
    "loader_processes": "more loader processes",
    "data_loading": "waiting for data",
    "transfer": "transfer between ranks",
    "slower_ranks": "waiting for slower ranks",
    "slower_compute": "slower computing",
    "overhead": "the mode's own work",
    "other": "other",
}
# A smaller part of the measured step is not worth a word in the first sentence.
NOTABLE_RATIO = 0.03
COLUMNS = (
    Column(title="Term"),
    Column(title="Per step", numeric=True),
    Column(title="Of the measured step", numeric=True),
    Column(title="From"),
)
MEANING = (
    "Linear scaling would take each device's part of one device's step, waiting for data and all. Each term is what "
    "the mode takes more; a negative one gives time back. More loader processes: what one device alone would gain if "
    "it had as many as all ranks together, simulated; what the mode waits for data beyond that is the next term. The "
    "two together are what the wait measurably changed by, which is what the first sentence tells. Slower "
    "computing: the same work takes longer beside the others, on shared cores or memory, or in smaller parts of a "
    "batch. Other is what is left, because gains do not add up: what is hidden behind something else gains nothing "
    "alone."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the bars from ideal to measured and the terms with their sources, or why there are none."""
    modes = {name: mode for name, mode in analysis.summary.modes.items() if not standing.is_baseline(name)}
    falls = {name: mode for name, mode in modes.items() if mode.waterfall and not why_withheld(mode)}
    losses = [OfMode(mode=name, blocks=tuple(_mode(name, mode))) for name, mode in falls.items()]
    missing = absent_of("Scaling loss", {name: _reason(mode) for name, mode in modes.items() if name not in falls})
    if not modes:
        return [Absent(what="Losses", reason="only one device was measured, and there is nothing to compare it with")]
    return [*losses, *missing, *([Note(text=MEANING)] if losses else [])]


def _reason(mode: ModeSummary) -> str:
    return standing.withheld_briefly(mode) or mode.waterfall_reason or "there is nothing to compare it with"


def _mode(name: str, mode: ModeSummary) -> Iterator[Block]:
    fall = mode.waterfall
    assert fall is not None
    yield Paragraph(text=_sentence(name, mode, fall))
    yield _chart(name, fall)
    yield Fold(title="Terms and sources", blocks=(_table(fall),))


def _sentence(name: str, mode: ModeSummary, fall: Waterfall) -> str:
    """Return how far from linear the mode is and what measurably takes most of the rest."""
    share = standing.linear(mode)
    reached = f" reaches {figure_text(share)} of linear" if share is not None and share.value is not None else ""
    took = f"a step takes {figure_text(fall.measured)}, linear would be {figure_text(fall.ideal)}"
    terms = told_apart(fall)
    lost, unsure = _notable(terms, fall), _notable(terms, fall, may_be_none=True)
    gained = _notable({term: stats.combination([(-1, figure)], "s") for term, figure in terms.items()}, fall)
    what = f"Lost: {lost}" if lost else "No single loss stands clear of the noise of this run"
    # Else one small loss that is sure would seem to be all that there is.
    rest = f"; not clear of noise: {unsure}" if lost and unsure else ""
    back = f". Given back: {gained}" if gained else ""
    return sentence(f"{mode_label(name)}{reached}: {took}. {what}{rest}{back}")


def _notable(terms: Mapping[str, Figure], fall: Waterfall, *, may_be_none: bool = False) -> str:
    """Return the terms that are worth a word, the largest first: those clear of 0, or those that may be none."""
    least = NOTABLE_RATIO * _value(fall.measured)
    found = {
        term: figure
        for term, figure in terms.items()
        if _value(figure) >= least and ((figure.low or 0.0) < 0) == may_be_none
    }
    largest = sorted(found, key=lambda term: -_value(found[term]))
    return listed([f"{TERM_WORDS[term]} {figure_text(found[term])}" for term in largest]) if largest else ""


def _value(figure: Figure) -> float:
    return figure.value or 0.0


def _chart(name: str, fall: Waterfall) -> Chart:
    known = [term for term in WATERFALL_TERMS if fall.terms[term].value is not None]
    figures = [fall.ideal, *(fall.terms[term] for term in known), fall.measured]
    words = ["linear scaling", *(TERM_WORDS[term] for term in known), "measured"]
    scale, unit = units.time_scale(max(abs(_value(figure)) for figure in figures))
    return Chart(
        title=f"{mode_label(name)}: from linear scaling to what was measured",
        traces=(_trace(words, figures, scale),),
        layout={**charts.bar_layout(f"{unit} per step"), "showlegend": False},
        height=charts.height(23 * len(figures), num_names=0),
        how_to_read="Each bar begins where the one above ended: to the right time is lost, to the left won back.",
        alternative=" ".join(f"{what}: {with_interval(figure)}." for what, figure in zip(words, figures, strict=True)),
    )


def _trace(words: Sequence[str], figures: Sequence[Figure], scale: float) -> dict[str, Any]:
    return {
        "type": "waterfall",
        "orientation": "h",
        "name": "",
        "y": [charts.plain(f"{what}  {figure_text(figure)}") for what, figure in zip(words, figures, strict=True)],
        "x": [_value(figure) / scale for figure in figures],
        "measure": ["absolute", *["relative"] * (len(figures) - 2), "total"],
        "hovertext": [f"{what}: {with_interval(figure)}" for what, figure in zip(words, figures, strict=True)],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "increasing": {"marker": {"color": charts.VERMILION}},
        "decreasing": {"marker": {"color": charts.GREEN}},
        "totals": {"marker": {"color": charts.BLUE}},
        "connector": {"line": {"color": charts.GREY, "width": 1}},
    }


def _table(fall: Waterfall) -> Table:
    measured = fall.measured.value or 0.0
    rows = [_row("linear scaling", fall.ideal, measured, "one device")]
    rows += [_row(TERM_WORDS[term], fall.terms[term], measured, fall.sources[term]) for term in WATERFALL_TERMS]
    rows.append(_row("measured", fall.measured, measured, "the mode"))
    return Table(
        caption="Seconds per step of one device; the terms add up to the measured step.",
        columns=COLUMNS,
        rows=tuple(rows),
    )


def _row(what: str, figure: Figure, measured: float, source: str) -> tuple[Cell, ...]:
    share = None if figure.value is None or not measured else figure.value / measured
    return (Cell(text=what), figure_cell(figure), amount_cell(share, "ratio", missing=NOTHING), Cell(text=source))


def result(analysis: Diagnosis) -> str:
    """Return how much of linear scaling the leading mode reaches."""
    name = standing.focus(analysis.summary)
    share = None if name is None else standing.linear(analysis.summary.modes[name])
    return "" if share is None or share.value is None else f"{figure_text(share)} of linear"


VIEW: View[Diagnosis] = View(
    name="waterfall",
    title="Scaling loss",
    build=build,
    applies=is_profile,
    result=result,
    is_half=True,
)
