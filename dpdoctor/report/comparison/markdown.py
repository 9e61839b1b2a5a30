"""A comparison as markdown that fits a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from dpdoctor.analysis.comparison import Change, Comparison
from dpdoctor.report.comparison import summary, verdict
from dpdoctor.report.comparison.remarks import remarks
from dpdoctor.report.comparison.rows import Row, change_interval, change_text, is_change
from dpdoctor.report.comparison.words import against, title
from dpdoctor.report.text import clipped, figure_text, mode_label, printable, short_interval

# A comment on GitHub holds 65,536 characters; with these limits the longest comparison stays far below.
LONGEST_LINE = 400
MOST_LINES = 20

_SPECIAL = re.compile(r"([\\`*_{}\[\]|#~])")


def render(comparison: Comparison) -> str:
    """Return the verdicts, a table of the figures that decide or changed, findings, counters and remarks."""
    rows, left_out = summary.decisive_rows(comparison)
    parts = [
        f"### dpdoctor: {_plain(title(comparison))}",
        *(f"**{_plain(found.sentence)}**{_below(found.detail)}" for found in verdict.verdicts(comparison)),
        _listed(f"{run.label}: {_code(run.path)}, {run.created}" for run in comparison.runs),
        *([_table(comparison, rows)] if rows else []),
        *([_plain(left_out)] if left_out else []),
        *_section("Findings", summary.finding_lines(comparison)),
        *_section("Counters of one step", summary.counter_lines(comparison)),
        *_section("What else differs", (f"{remark.title}: {remark.text}" for remark in remarks(comparison))),
        f"<sub>{_plain(verdict.evidence(comparison))} {_plain(verdict.chance(comparison))}</sub>",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _below(detail: str) -> str:
    return f"<br>{_plain(detail)}" if detail else ""


def _table(comparison: Comparison, rows: Iterable[Row]) -> str:
    labels = [run.label for run in comparison.runs]
    head = ["figure", *labels, *against(comparison)]
    align = ["---", *("--:" for _ in head[1:])]
    return "\n".join(_row(cells) for cells in (head, align, *(_cells(row) for row in rows)))


def _cells(row: Row) -> list[str]:
    figures = [_two_lines(figure_text(figure), short_interval(figure)) for figure in row.compared.figures]
    changes = [_change(row, change) for change in row.compared.changes]
    return [_two_lines(_plain(row.what), _plain(mode_label(row.mode))), *figures, *changes]


def _change(row: Row, change: Change) -> str:
    text = change_text(row, change)
    return _two_lines(f"**{text}**" if is_change(change) else text, change_interval(row, change))


def _two_lines(above: str, below: str) -> str:
    return f"{above}<br><sub>{below}</sub>" if below else above


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = [_plain(line) for line in lines]
    more = [f"and {len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    if found:
        yield f"**{title}**\n\n{_listed([*found[:MOST_LINES], *more])}"


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _plain(text: str) -> str:
    """Return text of a run so that markdown and HTML show it as it is, on one line, and nobody is notified of an @."""
    line = _SPECIAL.sub(r"\\\1", clipped(printable(text), LONGEST_LINE))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@<!-- -->")


def _code(text: str) -> str:
    """Return text in a fixed-width font; its fence is longer than any run of backticks in it."""
    line = clipped(printable(text), LONGEST_LINE)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"
