"""A comparison as text: for a terminal, and in Markdown that fits a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpdoctor.analysis.comparison import Change, Comparison
from dpdoctor.redact import printable
from dpdoctor.report.comparison import verdict
from dpdoctor.report.comparison.rows import (
    Row,
    against,
    change_interval,
    change_text,
    change_tone,
    counter_lines,
    decisive_rows,
    finding_lines,
    is_change,
    title_of,
)
from dpdoctor.report.comparison.verdict import remarks
from dpdoctor.report.formats.comment import plain
from dpdoctor.report.formats.console import literal
from dpdoctor.report.text import figure_text, mode_label, short_interval

_STYLES = {"plain": "bold", "good": "bold green", "warn": "bold yellow", "bad": "bold red"}
_CELL_STYLES = {"plain": "", "good": "green", "bad": "red"}


def for_terminal(comparison: Comparison) -> RenderableType:
    """Return the verdicts, what they rest on, the figures that decide or changed, findings, counters and remarks.

    Text from the runs is literal: rich's markup in it is not interpreted, and control characters are shown.
    """
    rows, left_out = decisive_rows(comparison)
    return Group(
        *_verdicts(comparison),
        *_runs(comparison),
        *([_terminal_table(comparison, rows)] if rows else []),
        *([Text(left_out, style="dim")] if left_out else []),
        *_lines("Findings", finding_lines(comparison)),
        *_lines("Counters of one step", counter_lines(comparison)),
        *_lines("What else differs", (f"{remark.title}: {remark.text}" for remark in remarks(comparison))),
        Text(f"\n{verdict.evidence(comparison)} {verdict.chance(comparison)}".rstrip(), style="dim"),
    )


def _verdicts(comparison: Comparison) -> Iterator[Text]:
    for found in verdict.verdicts(comparison):
        yield literal(found.sentence, _STYLES[found.tone])
        if found.detail:
            yield literal(found.detail, "dim")
    yield Text()


def _runs(comparison: Comparison) -> Iterator[Text]:
    for place, run in enumerate(comparison.runs):
        base = "" if place else " (the base)"
        yield literal(f"{run.label}: {run.path}, {run.created}{base}")
    yield Text()


def _terminal_table(comparison: Comparison, rows: Iterable[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("figure", overflow="fold")
    for title in (*(run.label for run in comparison.runs), *against(comparison)):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        figures = (_two_lines(figure_text(figure), short_interval(figure)) for figure in row.compared.figures)
        changes = (
            _two_lines(change_text(row, change), change_interval(row, change), _CELL_STYLES[change_tone(row, change)])
            for change in row.compared.changes
        )
        table.add_row(_two_lines(row.what, printable(mode_label(row.mode))), *figures, *changes)
    return table


def _two_lines(above: str, below: str, style: str = "") -> Text:
    text = Text(above, style=style)
    return text.append(f"\n{below}", style="dim") if below else text


def _lines(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    found = [Padding(literal(line), (0, 0, 0, 2)) for line in lines]
    if found:
        yield Text(f"\n{title}", style="bold")
        yield from found


# A comment on GitHub holds 65,536 characters; with these limits the longest comparison stays far below.
MOST_LINES = 20


def for_comment(comparison: Comparison) -> str:
    """Return the verdicts, a table of the figures that decide or changed, findings, counters and remarks."""
    rows, left_out = decisive_rows(comparison)
    parts = [
        f"### dpdoctor: {plain(title_of(comparison))}",
        *(f"**{plain(found.sentence)}**{_below(found.detail)}" for found in verdict.verdicts(comparison)),
        _listed(f"{run.label}: {plain(run.path)}, {plain(run.created)}" for run in comparison.runs),
        *([_comment_table(comparison, rows)] if rows else []),
        *([plain(left_out)] if left_out else []),
        *_section("Findings", finding_lines(comparison)),
        *_section("Counters of one step", counter_lines(comparison)),
        *_section("What else differs", (f"{remark.title}: {remark.text}" for remark in remarks(comparison))),
        f"<sub>{plain(verdict.evidence(comparison))} {plain(verdict.chance(comparison))}</sub>",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _below(detail: str) -> str:
    return f"<br>{plain(detail)}" if detail else ""


def _comment_table(comparison: Comparison, rows: Iterable[Row]) -> str:
    labels = [run.label for run in comparison.runs]
    head = ["figure", *labels, *against(comparison)]
    align = ["---", *("--:" for _ in head[1:])]
    return "\n".join(_comment_row(cells) for cells in (head, align, *(_cells(row) for row in rows)))


def _cells(row: Row) -> list[str]:
    figures = [_with_break(figure_text(figure), short_interval(figure)) for figure in row.compared.figures]
    changes = [_change(row, change) for change in row.compared.changes]
    return [_with_break(plain(row.what), plain(mode_label(row.mode))), *figures, *changes]


def _change(row: Row, change: Change) -> str:
    text = change_text(row, change)
    return _with_break(f"**{text}**" if is_change(change) else text, change_interval(row, change))


def _with_break(above: str, below: str) -> str:
    return f"{above}<br><sub>{below}</sub>" if below else above


def _comment_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _section(title_of: str, lines: Iterable[str]) -> Iterator[str]:
    found = [plain(line) for line in lines]
    more = [f"and {len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    if found:
        yield f"**{title_of}**\n\n{_listed([*found[:MOST_LINES], *more])}"


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
