"""The ranks compared: who comes late to collectives, and keeps the others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.cross_rank import CameLast, CrossRank, CrossRankGroup, Stragglers
from dpdoctor.report.blocks import Absent, Block, Callout, Cell, Chart, Column, Fold, Note, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING, capital, name_cell, sentence, whole_cell
from dpdoctor.report.traces.traced import TracedMode, by_mode, focused, has_traces
from dpdoctor.report.traces.words import NS, came_last, cause_words, lateness, seconds, time_cell

MOST_RANKS = 128
MOST_GROUPS = 32
MOST_EVENTS = 20
MOST_NUMBERS = 24
LONGEST_NAME = 40
LATE_TITLES = {
    "persistent": "One rank is late again and again",
    "rotating": "Now one rank is late, now another",
    "periodic": "Somebody is late at regular distances",
    "single": "Somebody was late now and then",
    "none": "No straggler in the trace",
    "unknown": "Straggler analysis not possible",
}
MEANING = (
    "Lateness is how much later than the median of the others a rank came to collectives in a step, as far as they "
    "computed nothing meanwhile; negative is earlier. It rests on durations alone, not on comparing clocks: in a call "
    "that no rank leaves before all have come, the shortest duration is the transfer and the rest is waiting for the "
    "last one."
)
MOST_DRAWN = 64
MOST_COLUMNS = 200
# Blue is early, orange late; the middle is nothing: Okabe and Ito's colours, told apart with any colour vision.
LATENESS_COLORS = [[0.0, charts.BLUE], [0.5, "#F4F4F0"], [1.0, charts.VERMILION]]


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the verdict with its reason, lateness by rank and step, the groups and what was left out."""
    return by_mode(analysis, "Comparison", _mode)


def _mode(mode: TracedMode) -> Sequence[Block] | str:
    cross_rank = mode.cross_rank
    if len(mode.ranks) < 2:
        missing = len(cross_rank.missing)
        return f"traces of {units.count(missing, 'other rank')} are not here" if missing else "there is one rank"
    return [
        _came_last(cross_rank.came_last, cross_rank.verdict) or _verdict(cross_rank.verdict),
        *_missing(cross_rank),
        *_lateness_map(cross_rank),
        *_folded("Lateness by rank", _ranks(cross_rank)),
        *_folded("Late steps", _events(cross_rank.verdict)),
        *_folded("Process groups", _groups(cross_rank.groups)),
        Note(text=" ".join((MEANING, *_clocks(cross_rank)))),
        *(Callout(tone="muted", title="Left out", text=sentence(note)) for note in cross_rank.notes),
    ]


def _folded(title: str, tables: Iterator[Table]) -> Iterator[Fold]:
    yield from (Fold(title=title, blocks=(table,)) for table in tables)


def _verdict(verdict: Stragglers) -> Callout:
    said = lateness(verdict) or verdict.reason or "no reason was recorded"
    steps = units.count(verdict.num_steps, "judged step")
    judged = f" Nobody was late in {steps}."
    if verdict.num_late:
        pattern = ", in no pattern" if verdict.kind == "none" else ""
        judged = f" Somebody was late in {units.whole(verdict.num_late)} of {steps}{pattern}."
    tone = {"none": "good", "unknown": "muted"}.get(verdict.kind, "warn")
    text = sentence(said[0].upper() + said[1:]) + (judged if verdict.num_steps else "")
    return Callout(tone=tone, title=LATE_TITLES[verdict.kind], text=text)


def _came_last(last: CameLast | None, verdict: Stragglers) -> Callout | None:
    """Return what is known where there is no verdict; None: there is one, or nobody came last to most."""
    if last is None or verdict.kind != "unknown":
        return None
    said = f"{sentence(capital(came_last(last)))} Whether it is so in most steps cannot be told: "
    return Callout(tone="muted", title="One rank came last to most", text=said + sentence(str(verdict.reason)))


def _missing(cross_rank: CrossRank) -> Iterator[Absent]:
    if cross_rank.missing:
        numbers = ", ".join(map(str, cross_rank.missing[:MOST_NUMBERS]))
        more = len(cross_rank.missing) - MOST_NUMBERS
        named = f"{numbers} and {units.whole(more)} more" if more > 0 else numbers
        yield Absent(what=units.count(len(cross_rank.missing), "rank"), reason=f"no trace of {named} is here")


def _ranks(cross_rank: CrossRank) -> Iterator[Table]:
    """Yield lateness and waiting per rank over the judged steps, the latest rank first."""
    steps = cross_rank.steps
    if not len(steps.steps):
        return
    median, waits = np.median(steps.lateness_ns, axis=0), steps.wait_ns.mean(axis=0)
    order = np.argsort(-median)[:MOST_RANKS].tolist()
    more = f", the first {MOST_RANKS}" if len(cross_rank.ranks) > MOST_RANKS else ""
    yield Table(
        caption=f"Ranks, the latest first{more}; over {units.count(len(steps.steps), 'judged step')}.",
        columns=(
            Column(title="Rank"),
            Column(title="Median lateness", numeric=True),
            Column(title="Greatest lateness", numeric=True),
            Column(title="Waits for others, per step", numeric=True),
        ),
        rows=tuple(
            (
                Cell(text=f"rank {cross_rank.ranks[place]}"),
                time_cell(float(median[place])),
                time_cell(float(steps.lateness_ns[:, place].max())),
                time_cell(float(waits[place])),
            )
            for place in order
        ),
    )


def _events(verdict: Stragglers) -> Iterator[Table]:
    if not verdict.events:
        return
    latest = sorted(verdict.events, key=lambda event: event.lateness_ns, reverse=True)[:MOST_EVENTS]
    more = f", the {MOST_EVENTS} latest of {len(verdict.events)}" if len(verdict.events) > MOST_EVENTS else ""
    yield Table(
        caption=f"Single steps in which a rank was far later than it usually is{more}.",
        columns=(
            Column(title="Step", numeric=True),
            Column(title="Rank"),
            Column(title="Late by", numeric=True),
            Column(title="What it did before"),
        ),
        rows=tuple(
            (
                Cell(text=str(event.step), sort=event.step),
                Cell(text=f"rank {event.rank}"),
                time_cell(event.lateness_ns),
                Cell(text=NOTHING if event.cause is None else cause_words(event.cause)),
            )
            for event in latest
        ),
    )


def _groups(groups: Sequence[CrossRankGroup]) -> Iterator[Table]:
    if not groups:
        return
    names = Counter(group.name for group in groups)
    more = f" {units.count(len(groups) - MOST_GROUPS, 'more group')} not shown." if len(groups) > MOST_GROUPS else ""
    yield Table(
        caption=f"Process groups, and how their calls were found again on every rank.{more}",
        columns=(
            Column(title="Group"),
            Column(title="Ranks here", numeric=True),
            Column(title="Not here", numeric=True),
            Column(title="Calls compared", numeric=True),
            Column(title="Calls not on all ranks", numeric=True),
            Column(title="Matched by"),
        ),
        rows=tuple(_group_row(group, names) for group in groups[:MOST_GROUPS]),
    )


def _group_row(group: CrossRankGroup, names: Counter[str]) -> tuple[Cell, ...]:
    more = ", ..." if len(group.ranks) > MOST_NUMBERS else ""
    whose = f"ranks {', '.join(map(str, group.ranks[:MOST_NUMBERS]))}{more}" if names[group.name] > 1 else ""
    matched = (
        Cell(text=f"not compared: {group.reason}")
        if group.reason
        else Cell(text="their numbers" if group.matched_by == "sequence" else "their order")
    )
    return (
        name_cell(group.name, LONGEST_NAME, note=whose) if group.name else Cell(text="not named"),
        whole_cell(len(group.ranks)),
        whole_cell(group.num_missing),
        whole_cell(0 if group.calls is None else len(group.calls)),
        whole_cell(sum(group.left_out)),
        matched,
    )


def _clocks(cross_rank: CrossRank) -> Iterator[str]:
    """Yield how well the ranks could be put onto one axis for the timeline."""
    others = [clock for clock in cross_rank.clocks if clock.rank != cross_rank.ranks[0]]
    if others:
        worst = max(others, key=lambda clock: clock.error_ns)
        yield (
            "The timeline in the run directory (timeline.json.gz, for ui.perfetto.dev) shows all ranks on the "
            f"clock of rank {cross_rank.ranks[0]}; of the others the least certain is rank {worst.rank}, to "
            f"{seconds(worst.error_ns)}. No figure here rests on that."
        )


def _lateness_map(cross_rank: CrossRank) -> Iterator[Chart | Absent]:
    """Yield a row per rank and a column per judged step; of many the latest ranks, and steps in runs of neighbours."""
    steps = cross_rank.steps
    if not len(steps.steps):
        yield Absent(what="Lateness by step", reason="no whole step has calls that all ranks hold")
        return
    columns, numbers, run = _thinned(steps.lateness_ns, steps.steps)
    rows = np.sort(np.argsort(-steps.lateness_ns.max(axis=0))[:MOST_DRAWN])
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
                "colorscale": LATENESS_COLORS,
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
    run = max(1, -(-len(steps) // MOST_COLUMNS))
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


def result(analysis: Diagnosis) -> str:
    """Return who is late in the leading mode."""
    for mode in focused(analysis):
        if len(mode.ranks) > 1:
            verdict = mode.cross_rank.verdict
            return lateness(verdict) or LATE_TITLES[verdict.kind].lower()
    return ""


VIEW: View[Diagnosis] = View(
    name="ranks",
    title="Ranks compared",
    build=build,
    applies=has_traces,
    result=result,
    is_half=True,
)
