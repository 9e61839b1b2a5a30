"""Where the devices' time goes, run beside run, from the traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Absent, Block, Paragraph, View
from dpdoctor.report.comparison import rows
from dpdoctor.report.comparison.tables import figure_table
from dpdoctor.report.drawing.share_bars import Part, share_bars
from dpdoctor.report.drawing.share_bars import Row as Bar
from dpdoctor.report.text import mode_label
from dpdoctor.report.traces.words import PART_WORDS
from dpdoctor.report.views.breakdown import PART_COLORS

PARTS = [Part(key=key, name=name, colors=PART_COLORS[key]) for key, name in PART_WORDS.items()]
CAPTION = "Shares of the traced steps. What takes no time in any run is left out."
MEANING = (
    "Shares of the traced steps over all devices of the mode, from one launch. A profiler slows what it watches, the "
    "host most, so compare shares and take durations from the measured windows. A change is in points of the step."
)


def build(comparison: Comparison) -> Sequence[Block]:
    """Return the five parts as bars, by mode and run, and with the causes of idle as a table."""
    every = rows.of_modes(comparison, rows.budget_rows)
    if not every:
        return [Absent(what="Time breakdown", reason="no run left a trace of a mode that may be compared")]
    chart = share_bars(
        title="The time of the devices",
        whole="the traced steps",
        rows=[*_bars(comparison)],
        parts=PARTS,
        how_to_read="A bar is all of the devices' time. Communication is only what nothing hid.",
    )
    return [chart, figure_table(comparison, CAPTION, every), Paragraph(text=MEANING)]


def _bars(comparison: Comparison) -> Iterator[Bar]:
    for name, mode in comparison.modes.items():
        for place, run in enumerate(comparison.runs):
            shares = {key: found.figures[place].value for key, found in mode.budget.items() if key in PART_WORDS}
            ratios = {key: share for key, share in shares.items() if share is not None}
            if ratios:
                words = {key: f"{units.share(share)} of the step" for key, share in ratios.items()}
                yield Bar(name=f"{mode_label(name)}, {run.label}", ratios=ratios, amounts=words)


VIEW: View[Comparison] = View(name="breakdown", title="Where the devices' time goes", build=build)
