"""Lateness of every rank in every step as a picture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.analysis.cross_rank import CrossRank
from dpdoctor.report.blocks import Absent, Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.traces.words import NS, seconds

MOST_RANKS = 64
MOST_STEPS = 200
# Blue is early, orange late; the middle is nothing: Okabe and Ito's colours, told apart with any colour vision.
COLORS = [[0.0, charts.BLUE], [0.5, "#F4F4F0"], [1.0, charts.VERMILION]]


def lateness_map(cross_rank: CrossRank) -> Iterator[Chart | Absent]:
    """Yield a row per rank and a column per judged step; of many the latest ranks, and steps in runs of neighbours."""
    steps = cross_rank.steps
    if not len(steps.steps):
        yield Absent(what="Lateness by step", reason="no whole step has calls that all ranks hold")
        return
    columns, numbers, run = _thinned(steps.lateness_ns, steps.steps)
    rows = np.sort(np.argsort(-steps.lateness_ns.max(axis=0))[:MOST_RANKS])
    shown = columns[:, rows].T
    scale, unit = units.time_scale(float(np.abs(shown).max()) * NS)
    largest = float(np.abs(shown).max()) * NS / scale
    ends = [-largest, 0.0, largest]
    names = [f"{units.digits(end)} {unit}" for end in ends]
    yield Chart(
        title="Lateness by rank and step",
        traces=(
            {
                "type": "heatmap",
                "x": [f"{number}" for number in numbers.tolist()],
                "y": [f"rank {cross_rank.ranks[row]}" for row in rows.tolist()],
                "z": [[float(f"{value * NS / scale:.4g}") for value in line] for line in shown.tolist()],
                "zmid": 0,
                "zmin": -largest,
                "zmax": largest,
                "colorscale": COLORS,
                "colorbar": {"tickvals": ends, "ticktext": names, "thickness": 12, "ypad": 0},
                "hovertemplate": f"%{{y}}, step %{{x}}: %{{z}} {unit}<extra></extra>",
                "xgap": 1,
                "ygap": 1,
            },
        ),
        layout={
            "showlegend": False,
            "xaxis": {"title": {"text": "step"}, "type": "category", "automargin": True, "showgrid": False},
            "yaxis": {"autorange": "reversed", "type": "category", "automargin": True, "showgrid": False},
        },
        height=charts.height(max(60, 20 * len(rows)), num_names=0),
        how_to_read=_how_to_read(len(rows), len(cross_rank.ranks), run),
        alternative=_words(cross_rank),
    )


def _thinned(
    lateness_ns: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return int64[c, r], the step of each column, and of how many neighbours it is the one with the latest rank."""
    run = max(1, -(-len(steps) // MOST_STEPS))
    latest = lateness_ns.max(axis=1)
    chosen = [begin + int(latest[begin : begin + run].argmax()) for begin in range(0, len(steps), run)]
    return lateness_ns[chosen], steps[chosen], run


def _how_to_read(num_rows: int, num_ranks: int, run: int) -> str:
    words = "Orange: the others waited for this rank. A row all orange is a slow rank; single spots are hiccups."
    if num_rows < num_ranks:
        words += f" Drawn: the {num_rows} ranks that were latest, of {units.whole(num_ranks)}."
    if run > 1:
        words += f" Of each {run} neighbouring steps the one with the latest rank is drawn."
    return words


def _words(cross_rank: CrossRank) -> str:
    steps, lateness = cross_rank.steps.steps, cross_rank.steps.lateness_ns
    step, rank = np.unravel_index(int(lateness.argmax()), lateness.shape)
    return (
        f"{units.count(len(cross_rank.ranks), 'rank')} over {units.count(len(steps), 'step')}. The "
        f"latest is rank {cross_rank.ranks[int(rank)]} in step {steps[int(step)]}, by {seconds(float(lateness.max()))}."
    )
