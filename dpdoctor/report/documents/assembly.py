"""A document's sections from its views: what is absent is gathered, and stands once at the end of the last one.

Cards and the views that draw what they are about lead to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from dpdoctor.report.blocks import (
    Absent,
    Block,
    Card,
    Fold,
    Grid,
    NotMeasured,
    OfMode,
    Part,
    Section,
    Shown,
    Subject,
)
from dpdoctor.report.text import capital, sentence

NOT_MEASURED = "not-measured"
# What is absent, and the mode that it is of; empty: of none alone.
_Missing: TypeAlias = tuple[Absent, str]


def parts(sections: Sequence[Section[Subject]], subject: Subject) -> list[Part]:
    """Return every section with the views that apply to a subject and have something to show."""
    found: list[Part] = []
    missing: list[_Missing] = []
    for section in sections:
        part, absent = _part(section, subject)
        found.append(part)
        missing += absent
    if missing:
        last = found[-1]
        found[-1] = replace(last, views=(*last.views, _not_measured(missing)))
    return _linked(found)


def shown_modes(parts: Sequence[Part], names: Iterable[str]) -> list[str]:
    """Return those of the named modes that any block is about."""
    blocks = (block for part in parts for view in part.views for block in _within(view.blocks))
    found = {block.mode for block in blocks if isinstance(block, OfMode)}
    return [name for name in names if name in found]


def _part(section: Section[Subject], subject: Subject) -> tuple[Part, list[_Missing]]:
    views = [view for view in section.views if view.applies(subject)]
    built = [(view, *_parted(view.build(subject))) for view in views]
    missing = [item for _, _, absences in built for item in absences]
    shown = tuple(
        Shown(name=view.name, title=view.title, blocks=blocks, is_half=view.is_half)
        for view, blocks, _ in built
        if blocks
    )
    said = [view.result(subject) for view, blocks, _ in built if blocks]
    result = " \N{MIDDLE DOT} ".join(_naming_once(said)) if shown else _why_empty(missing, section.why_empty)
    return Part(name=section.name, title=section.title, result=result, views=shown), missing


def _naming_once(said: Iterable[str]) -> Iterator[str]:
    """Yield what views say, without the mode where that before is of the same one."""
    before = ""
    for text in filter(None, said):
        mode, colon, rest = text.partition(": ")
        yield rest if colon and mode == before else text
        before = mode


def _why_empty(missing: Sequence[_Missing], in_general: str) -> str:
    return f"not measured: {missing[0][0].reason}" if missing else in_general


def _parted(blocks: Sequence[Block], mode: str = "") -> tuple[tuple[Block, ...], list[_Missing]]:
    """Return blocks without what is absent, and that with the mode that it is of."""
    kept: list[Block] = []
    missing: list[_Missing] = []
    for block in blocks:
        if isinstance(block, Absent):
            missing.append((block, mode))
        elif isinstance(block, OfMode | Fold | Grid):
            inner, absences = _parted(block.blocks, block.mode if isinstance(block, OfMode) else mode)
            missing += absences
            if inner:
                kept.append(replace(block, blocks=inner))
        else:
            kept.append(block)
    return tuple(kept), missing


def _not_measured(missing: Sequence[_Missing]) -> Shown:
    """Return each reason once with what is missing for it, and of which modes."""
    found: dict[str, dict[str, list[str]]] = {}
    for absent, mode in missing:
        found.setdefault(absent.reason, {}).setdefault(absent.what, []).append(mode)
    reasons = tuple(
        (sentence(capital(reason)), "; ".join(_of_modes(what, modes) for what, modes in told.items()))
        for reason, told in found.items()
    )
    return Shown(name=NOT_MEASURED, title="Not shown, and why", blocks=(NotMeasured(reasons=reasons),))


def _of_modes(what: str, modes: Sequence[str]) -> str:
    named = ", ".join(dict.fromkeys(filter(None, modes)))
    return f"{what} ({named})" if named else what


def _linked(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with the cards that are seen in a view named there; cards of views that are not shown name none.

    What a card is of is named with its mode: a view has a block for each.
    """
    shown = {view.name for part in parts for view in part.views}
    places = {place for part in parts for view in part.views for place in _places(view)}
    found: dict[str, list[tuple[str, str]]] = {}

    def settled(block: Block, mode: str = "") -> Block:
        if isinstance(block, OfMode | Fold | Grid):
            of = block.mode if isinstance(block, OfMode) else mode
            return replace(block, blocks=tuple(settled(inner, of) for inner in block.blocks))
        if not isinstance(block, Card) or not block.seen_in:
            return block
        if block.seen_in not in shown:
            return replace(block, seen_in="")
        found.setdefault(block.seen_in, []).append((f"{mode}: {block.title}" if mode else block.title, block.anchor))
        place = f"{block.seen_in}-{mode}"
        return replace(block, seen_in=place if place in places else block.seen_in)

    def with_blocks(view: Shown) -> Shown:
        return replace(view, blocks=tuple(map(settled, view.blocks)))

    drawn = [replace(part, views=tuple(map(with_blocks, part.views))) for part in parts]

    def with_cards(view: Shown) -> Shown:
        return replace(view, cards=tuple(found.get(view.name, ())))

    return [replace(part, views=tuple(map(with_cards, part.views))) for part in drawn]


def _places(view: Shown) -> Iterator[str]:
    return (f"{view.name}-{block.mode}" for block in _within(view.blocks) if isinstance(block, OfMode))


def _within(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, OfMode | Fold | Grid):
            yield from _within(block.blocks)
