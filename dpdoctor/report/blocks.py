"""What a section is made of. Blocks hold plain text and numbers; the template alone turns them into HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import astuple, replace

# What a document is about: a run, or runs side by side.
Subject = TypeVar("Subject")
# How a block is coloured. A tone never speaks alone: the text says the same.
TONES = ("plain", "good", "warn", "bad", "muted")


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The answer in one sentence, and in `detail` what it rests on."""

    kind: ClassVar[str] = "verdict"
    tone: str
    sentence: str
    detail: str = ""

    def __post_init__(self) -> None:
        _check_tone(self.tone)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a run and what to do first.

    Attributes:
        label: what bounds it, in a word; empty: nothing stands out.
        figures: the few that decide, each with its name, itself and a note.
    """

    kind: ClassVar[str] = "answer"
    tone: str
    label: str
    sentence: str
    do_first: str
    figures: tuple[tuple[str, str, str], ...]

    def __post_init__(self) -> None:
        _check_tone(self.tone)


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a bar: what it is of, its share of the longest bar, what stands in it and what it says on hover."""

    key: str
    share: float
    text: str
    title: str


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A row of BarTable: its cells, and a bar with a text at its end; without pieces the text alone."""

    cells: tuple[Cell, ...]
    pieces: tuple[Piece, ...]
    end: str


class BarTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose last column is a bar, drawn without a script.

    Attributes:
        last: title of the last column.
        mark, mark_text: where a mark stands across all bars, as a share of the longest, and what it is; None: none.
        legend: key and name of the pieces.
    """

    kind: ClassVar[str] = "bars"
    title: str
    caption: str
    columns: tuple[Column, ...]
    last: str
    rows: tuple[Bar, ...]
    legend: tuple[tuple[str, str], ...]
    mark: float | None = None
    mark_text: str = ""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of Ranking: what to do, where, what it gives and how that is known, and where it applies."""

    title: str
    text: str
    line: str
    code: str
    gain: str
    gain_value: float | None
    basis: str
    share: float
    notes: tuple[str, ...]
    anchor: str


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, what gives most first."""

    kind: ClassVar[str] = "ranking"
    title: str
    caption: str
    advice: tuple[Advice, ...]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be told, a sentence each."""

    kind: ClassVar[str] = "limits"
    title: str
    points: tuple[str, ...]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Two blocks side by side where there is room; a third stands below the first."""

    kind: ClassVar[str] = "columns"
    blocks: tuple[Block, ...]


class Paragraph(msgspec.Struct, frozen=True, kw_only=True):
    """Running text."""

    kind: ClassVar[str] = "paragraph"
    text: str


class Callout(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not be missed. `lines` are shown as they are, in a fixed-width font."""

    kind: ClassVar[str] = "callout"
    tone: str
    title: str
    text: str
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_tone(self.tone)


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that the run does not have, and why."""

    kind: ClassVar[str] = "absent"
    what: str
    reason: str


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table; numbers are aligned on the right."""

    title: str
    numeric: bool = False


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a table; a tone other than plain makes it a badge.

    `note` stands below it in small type, `footnote` below the table, once for all cells that have the same. `full` is
    what `text` was shortened from; it opens at a click. `sort` is the number that `text` shows, by which readers may
    sort the table; None: unknown or no number. As it says nothing new it does not count when cells are compared.
    `anchor` is the id of the cell, which marks of a chart lead to.
    """

    text: str
    full: str = ""
    note: str = ""
    footnote: str = ""
    tone: str = "plain"
    sort: float | None = None
    anchor: str = ""

    def __post_init__(self) -> None:
        _check_tone(self.tone)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self._said == other._said

    __ne__ = object.__ne__  # that of a Struct compares all fields

    def __hash__(self) -> int:
        return hash(self._said)

    @property
    def _said(self) -> tuple[Any, ...]:
        return astuple(replace(self, sort=None))


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells under columns; the first cell of a row names it."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.caption!r} has {len(self.columns)} columns but a row of {len(row)} cells"
                )

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Return the distinct footnotes of the cells in reading order; a cell refers to its own by the place in it."""
        return tuple(dict.fromkeys(cell.footnote for row in self.rows for cell in row if cell.footnote))


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Names and their values."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """Text in a fixed-width font, such as a command."""

    kind: ClassVar[str] = "lines"
    caption: str
    lines: tuple[str, ...]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A figure drawn by plotly.js.

    Attributes:
        traces: plotly traces; text in them that comes from a run must have gone through `charts.plain`.
        layout: plotly layout; fonts and colours of the theme are added in the page.
        height: in CSS pixels.
        how_to_read: one line.
        alternative: what the picture shows, in words and numbers.
    """

    kind: ClassVar[str] = "chart"
    title: str
    traces: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    height: int
    how_to_read: str
    alternative: str


class Perfetto(msgspec.Struct, frozen=True, kw_only=True):
    """Traces to look at in Perfetto, which opens at a click and at nothing else.

    Attributes:
        title: what Perfetto calls the trace that the page carries.
        events: that trace, as Chrome's format has it; empty: it is too large to carry.
        files: where traces lie, each with what it is of; `num_more` are not listed.
    """

    kind: ClassVar[str] = "perfetto"
    title: str
    events: tuple[dict[str, Any], ...]
    files: tuple[str, ...]
    num_more: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call with what it calls; shares are of all time. `is_users`: it is a line of the script, else a library's."""

    name: str
    is_users: bool
    share: float
    own_share: float
    calls: tuple[Call, ...]
    is_open: bool


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """A tree of calls whose branches open and close."""

    kind: ClassVar[str] = "calls"
    title: str
    caption: str
    calls: tuple[Call, ...]


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Charts, and facts beside them, side by side where there is room."""

    kind: ClassVar[str] = "grid"
    blocks: tuple[Block, ...]


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks behind a title that opens and closes."""

    kind: ClassVar[str] = "fold"
    title: str
    blocks: tuple[Block, ...]
    is_open: bool = False


class OfMode(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks about one mode, among which a reader chooses once for the whole document."""

    kind: ClassVar[str] = "of mode"
    mode: str
    blocks: tuple[Block, ...]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """How the blocks above are meant, for those who ask."""

    kind: ClassVar[str] = "note"
    text: str


class NotMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """All that is missing in a document: each reason with what is missing for it."""

    kind: ClassVar[str] = "not measured"
    reasons: tuple[tuple[str, str], ...]


class Badge(msgspec.Struct, frozen=True, kw_only=True):
    """A word or two in a coloured pill."""

    text: str
    tone: str = "muted"

    def __post_init__(self) -> None:
        _check_tone(self.tone)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One statement with what it rests on and what follows from it.

    Attributes:
        points: what it rests on, one sentence each.
        pairs: names and their values, a sentence at most.
        code: a line to copy; empty: none.
        about: more of its kind, behind a click: names and paragraphs.
        anchor: the id under which links find it; empty: none.
        seen_in: name of the view that draws what it is about; empty: none, or none on this page.
    """

    kind: ClassVar[str] = "card"
    tone: str
    title: str
    badges: tuple[Badge, ...]
    points: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    code: str = ""
    about: tuple[tuple[str, str], ...] = ()
    anchor: str = ""
    seen_in: str = ""

    def __post_init__(self) -> None:
        _check_tone(self.tone)


Block: TypeAlias = (
    Headline
    | Answer
    | BarTable
    | Ranking
    | Limits
    | Columns
    | Paragraph
    | Callout
    | Absent
    | Table
    | Facts
    | Lines
    | Chart
    | Perfetto
    | Calls
    | Grid
    | Fold
    | OfMode
    | Note
    | NotMeasured
    | Card
)


def _always(_: object) -> bool:
    return True


def _nothing(_: object) -> str:
    return ""


class View(msgspec.Struct, Generic[Subject], frozen=True, kw_only=True):
    """One question about a run or a comparison, and the blocks that answer it: a part of a section.

    Attributes:
        name: its address within the document.
        title: above its blocks; empty: it speaks for itself.
        build: returns its blocks; without any it is no part of this document.
        applies: of which subjects it is a part at all.
        result: its answer in a clause, for the line of the closed section; empty: none.
        is_half: whether another view has room beside it on a wide page.
    """

    name: str
    title: str
    build: Callable[[Subject], Sequence[Block]]
    applies: Callable[[Subject], bool] = _always
    result: Callable[[Subject], str] = _nothing
    is_half: bool = False


class Section(msgspec.Struct, Generic[Subject], frozen=True, kw_only=True):
    """Views that are read together.

    Attributes:
        name: its address within the document.
        why_empty: why it is empty where none of its views applies.
    """

    name: str
    title: str
    views: tuple[View[Subject], ...]
    why_empty: str = "not part of this report"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A view as it is drawn; `cards` are those that are seen in it, by title and anchor."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    is_half: bool = False
    cards: tuple[tuple[str, str], ...] = ()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A section as it is drawn.

    Attributes:
        result: what it says, in a line that stands beside its title.
        views: none: there is nothing to show, and `result` says why.
    """

    name: str
    title: str
    result: str
    views: tuple[Shown, ...]

    @property
    def rows(self) -> list[tuple[tuple[Shown, ...], ...]]:
        """Return the views as a wide page lays them out: rows of one stack, or of two side by side.

        Views that have room beside each other and follow each other are a row; the first of them stand on the left.
        """
        rows: list[tuple[tuple[Shown, ...], ...]] = []
        for is_half, together in groupby(self.views, key=lambda view: view.is_half):
            views = tuple(together)
            left = len(views) // 2
            rows += [tuple(filter(None, (views[:left], views[left:])))] if is_half else [((view,),) for view in views]
        return rows


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What people read of a run or a comparison, whatever it is drawn as.

    Attributes:
        origin: when and where it comes from, below the title.
        modes: of which it has blocks, for a reader to choose from; `focus`: the one to begin with, empty: all.
        written: what wrote it, for the foot.
        data: all numbers as JSON has them, which a page hands out as `file_name`.
    """

    title: str
    origin: Sequence[str]
    parts: Sequence[Part]
    modes: Sequence[str]
    focus: str
    written: str
    data: Any
    file_name: str


def _check_tone(tone: str) -> None:
    if tone not in TONES:
        raise ValueError(f"tone is {tone!r}; known: {', '.join(TONES)}")
