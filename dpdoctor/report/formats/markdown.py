"""The report for a pull request: a comment in GitHub's Markdown, with the facts of the page's first screen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpdoctor import units
from dpdoctor.analysis import Analysis
from dpdoctor.report.blocks import Cell, Table
from dpdoctor.report.formats.markup import fenced, plain
from dpdoctor.report.text import capital, listed, run_title, sentence
from dpdoctor.report.words.brief import Brief, Trouble, brief
from dpdoctor.report.words.costliest import Bottleneck, Treatment

# GitHub takes 65,536 characters. Whoever posts this may want to add a line.
MOST_CHARACTERS = 60_000
_ROOM_FOR_LEFT_OUT = 300
_LONGEST_NAME = 200
_PARAGRAPHS = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Items of one kind, of which as many are shown, whole, as there is room for; `head` stands before the first."""

    noun: str
    items: tuple[str, ...]
    head: str = ""
    joint: str = _PARAGRAPHS

    def first(self, number: int) -> str:
        """Return the first items below their head; empty: none."""
        return self.joint.join(filter(None, (self.head, *self.items[:number]))) if number > 0 else ""

    def fitting(self, room: int) -> int:
        """Return how many items there is room for, in characters."""
        lengths = (len(self.joint) + len(item) for item in self.items)
        return sum(length <= room for length in itertools.accumulate(lengths, initial=len(self.head))) - 1


def comment(analysis: Analysis) -> str:
    """Return the comment: at most MOST_CHARACTERS; what had to be left out is said.

    Text from the run is shown as it is: no markup, mention, link or element in it comes to life.
    """
    found = brief(analysis)
    first = _PARAGRAPHS.join(_opening(found))
    origin = f"{plain(run_title(analysis), _LONGEST_NAME)}, {plain(analysis.summary.created, _LONGEST_NAME)}"
    last = f"{origin}. {plain(' '.join(found.notes))}".rstrip()
    room = MOST_CHARACTERS - len(first) - len(last) - _ROOM_FOR_LEFT_OUT
    return _PARAGRAPHS.join((first, *_fitted(list(_parts(found)), room), last)) + "\n"


def _fitted(parts: Sequence[_Part], room: int) -> Iterator[str]:
    """Yield of each part what there is room for, then what was left out."""
    left_out = []
    for part in parts:
        number = max(0, part.fitting(room - len(_PARAGRAPHS)))
        if shown := part.first(number):
            yield shown
            room -= len(_PARAGRAPHS) + len(shown)
        if number < len(part.items):
            left_out.append(units.count(len(part.items) - number, part.noun))
    if left_out:
        yield f"Left out, because a comment holds no more: {listed(left_out)}."


def _opening(found: Brief) -> Iterator[str]:
    yield f"### {plain(found.verdict.sentence)}"
    if found.verdict.detail:
        yield plain(found.verdict.detail)


def _parts(found: Brief) -> Iterator[_Part]:
    for table in found.tables:
        yield from _table(table)
    yield _Part(noun="late rank", items=tuple(map(plain, found.late)))
    yield _Part(noun="bottleneck", items=tuple(map(_bottleneck, found.bottlenecks)))
    yield _Part(noun="failure", items=tuple(map(_trouble, found.troubles)))
    yield _Part(
        noun="remark", items=tuple(f"- {plain(remark)}" for remark in found.remarks), head="Remarks:", joint="\n"
    )


def _table(table: Table) -> Iterator[_Part]:
    """Yield the rows under their heads, and what the numbers in them refer to."""
    heads = " | ".join(plain(column.title) for column in table.columns)
    rules = " | ".join("---:" if column.numeric else "---" for column in table.columns)
    footnotes = table.footnotes
    rows = (" | ".join(_cell(cell, footnotes) for cell in row) for row in table.rows)
    yield _Part(
        noun="row",
        items=tuple(f"| {row} |" for row in rows),
        head=f"{plain(table.caption)}\n\n| {heads} |\n| {rules} |",
        joint="\n",
    )
    numbered = tuple(f"{number}. {plain(text)}" for number, text in enumerate(footnotes, 1))
    yield _Part(noun="footnote", items=numbered, joint="\n")


def _cell(cell: Cell, footnotes: Sequence[str]) -> str:
    mark = f"<sup>{footnotes.index(cell.footnote) + 1}</sup>" if cell.footnote else ""
    note = f"<br>{plain(cell.note, _LONGEST_NAME)}" if cell.note else ""
    return f"{plain(cell.text, _LONGEST_NAME)}{mark}{note}"


def _bottleneck(bottleneck: Bottleneck) -> str:
    parts = [f"#### {plain(capital(bottleneck.title))}"]
    for treatment in bottleneck.treatments:
        parts += _treatment(treatment)
    return _PARAGRAPHS.join(parts)


def _treatment(treatment: Treatment) -> Iterator[str]:
    yield "\n".join(f"- {plain(cost)}" for cost in treatment.costs)
    if treatment.remedy:
        yield plain(sentence(capital(treatment.remedy)))
    if treatment.lines:
        yield f"In your script: {listed([plain(line, _LONGEST_NAME) for line in treatment.lines])}"
    if treatment.code:
        yield fenced([treatment.code], "python")


def _trouble(trouble: Trouble) -> str:
    """Return what went wrong and, behind a click, what was printed."""
    text = plain(trouble.sentence)
    if not trouble.lines:
        return text
    return f"{text}\n\n<details><summary>Details</summary>\n\n{fenced(trouble.lines, 'text')}\n\n</details>"
