"""A comparison as markdown that fits a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dpdoctor.analysis.comparison import Change, Comparison
from dpdoctor.report.comparison import verdict
from dpdoctor.report.comparison.remarks import remarks
from dpdoctor.report.comparison.rows import (
    Row,
    change_interval,
    change_text,
    counter_lines,
    decisive_rows,
    finding_lines,
    is_change,
)
from dpdoctor.report.comparison.words import against, title
from dpdoctor.report.formats.comment import plain
from dpdoctor.report.text import figure_text, mode_label, short_interval

# A comment on GitHub holds 65,536 characters; with these limits the longest comparison stays far below.
MOST_LINES = 20


def render(comparison: Comparison) -> str:
    """Return the verdicts, a table of the figures that decide or changed, findings, counters and remarks."""
    rows, left_out = decisive_rows(comparison)
    parts = [
        f"### dpdoctor: {plain(title(comparison))}",
        *(f"**{plain(found.sentence)}**{_below(found.detail)}" for found in verdict.verdicts(comparison)),
        _listed(f"{run.label}: {plain(run.path)}, {plain(run.created)}" for run in comparison.runs),
        *([_table(comparison, rows)] if rows else []),
        *([plain(left_out)] if left_out else []),
        *_section("Findings", finding_lines(comparison)),
        *_section("Counters of one step", counter_lines(comparison)),
        *_section("What else differs", (f"{remark.title}: {remark.text}" for remark in remarks(comparison))),
        f"<sub>{plain(verdict.evidence(comparison))} {plain(verdict.chance(comparison))}</sub>",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _below(detail: str) -> str:
    return f"<br>{plain(detail)}" if detail else ""


def _table(comparison: Comparison, rows: Iterable[Row]) -> str:
    labels = [run.label for run in comparison.runs]
    head = ["figure", *labels, *against(comparison)]
    align = ["---", *("--:" for _ in head[1:])]
    return "\n".join(_row(cells) for cells in (head, align, *(_cells(row) for row in rows)))


def _cells(row: Row) -> list[str]:
    figures = [_two_lines(figure_text(figure), short_interval(figure)) for figure in row.compared.figures]
    changes = [_change(row, change) for change in row.compared.changes]
    return [_two_lines(plain(row.what), plain(mode_label(row.mode))), *figures, *changes]


def _change(row: Row, change: Change) -> str:
    text = change_text(row, change)
    return _two_lines(f"**{text}**" if is_change(change) else text, change_interval(row, change))


def _two_lines(above: str, below: str) -> str:
    return f"{above}<br><sub>{below}</sub>" if below else above


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = [plain(line) for line in lines]
    more = [f"and {len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    if found:
        yield f"**{title}**\n\n{_listed([*found[:MOST_LINES], *more])}"


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
