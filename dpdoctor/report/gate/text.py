"""A gate for people: for a terminal, and in GitHub's Markdown for a job's summary or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from dpdoctor.gate.model import GateResult
from dpdoctor.report.blocks import Cell, Table
from dpdoctor.report.formats.comment import LONGEST_NAME, Part, assembled, plain, table_parts
from dpdoctor.report.formats.console import literal
from dpdoctor.report.gate.content import Content, content

_STYLES = {"plain": "", "good": "bold green", "warn": "bold yellow", "bad": "bold red", "muted": "dim"}
_INDENTED = (0, 0, 0, 2)


def for_terminal(result: GateResult) -> RenderableType:
    """Return the verdict, its reasons, times, counters that differ, what moved and what was compared.

    Text from the runs is literal: rich's markup in it is not interpreted, and it does not command the terminal.
    """
    found = content(result)
    return Group(*_verdict(found), *_tables(found), *_titled(found), literal(f"\n{', '.join(found.origin)}", "dim"))


def _verdict(found: Content) -> Iterator[RenderableType]:
    yield literal(found.verdict.sentence, _STYLES[found.verdict.tone])
    yield from map(literal, found.reasons)


def _tables(found: Content) -> Iterator[RenderableType]:
    for table in found.tables:
        yield literal(f"\n{table.caption}", "bold")
        yield _table(table)
        yield from (literal(footnote, "dim") for footnote in table.footnotes)


def _table(table: Table) -> RichTable:
    found = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in table.columns:
        # On a narrow terminal a figure takes two lines; none is ever cut.
        found.add_column(column.title, justify="right" if column.numeric else "left", overflow="fold")
    for row in table.rows:
        found.add_row(*map(_cell, row))
    return found


def _cell(cell: Cell) -> Text:
    text = literal(cell.full or cell.text, _STYLES[cell.tone])
    return text.append_text(literal(f"\n{cell.note}", "dim")) if cell.note else text


def _titled(found: Content) -> Iterator[RenderableType]:
    for title, told in found.lists:
        yield Text(f"\n{title}", style="bold")
        yield from _indented(told)


def _indented(told: Iterable[str]) -> Iterator[RenderableType]:
    return (Padding(literal(line), _INDENTED) for line in told)


def for_comment(result: GateResult) -> str:
    """Return the comment, at most report.formats.comment.MOST_CHARACTERS long; what had to be left out is said.

    Text from the runs is shown as it is: no markup, mention, link or element in it comes to life.
    """
    found = content(result)
    last = ", ".join(plain(part, LONGEST_NAME) for part in found.origin)
    return assembled(f"### {plain(found.verdict.sentence)}", list(_comment_parts(found)), f"<sub>{last}</sub>")


def _comment_parts(found: Content) -> Iterator[Part]:
    yield Part(noun="mode", items=tuple(f"- {plain(reason)}" for reason in found.reasons), joint="\n")
    for table in found.tables:
        yield from table_parts(table)
    for title, told in found.lists:
        items = tuple(f"- {plain(line)}" for line in told)
        yield Part(noun="line", items=items, head=f"**{plain(title)}**\n", joint="\n")
