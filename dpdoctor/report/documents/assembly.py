"""A document's sections from its views: what is absent is gathered, and stands once at the end of the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from dpdoctor.report.blocks import (
    Absent,
    Block,
    Fold,
    Grid,
    NotMeasured,
    OfMode,
    Part,
    Section,
    Shown,
    Subject,
)
from dpdoctor.report.text import by_reason, capital, sentence

NOT_MEASURED = "not-measured"


def parts(sections: Sequence[Section[Subject]], subject: Subject) -> list[Part]:
    """Return every section with the views that apply to a subject and have something to show."""
    found, missing = [], []
    for section in sections:
        part, absent = _part(section, subject)
        found.append(part)
        missing += absent
    if missing:
        last = found[-1]
        found[-1] = dataclasses.replace(last, views=(*last.views, _not_measured(missing)))
    return found


def shown_modes(parts: Sequence[Part], names: Iterable[str]) -> list[str]:
    """Return those of the named modes that any block is about."""
    blocks = (block for part in parts for view in part.views for block in _within(view.blocks))
    found = {block.mode for block in blocks if isinstance(block, OfMode)}
    return [name for name in names if name in found]


def _part(section: Section[Subject], subject: Subject) -> tuple[Part, list[Absent]]:
    views = [view for view in section.views if view.applies(subject)]
    built = [(view, *_parted(view.build(subject))) for view in views]
    missing = [absent for _, _, absences in built for absent in absences]
    shown = tuple(Shown(name=view.name, title=view.title, blocks=blocks) for view, blocks, _ in built if blocks)
    said = [view.result(subject) for view, blocks, _ in built if blocks]
    result = " \N{MIDDLE DOT} ".join(filter(None, said)) if shown else _why_empty(missing)
    return Part(name=section.name, title=section.title, result=result, views=shown), missing


def _why_empty(missing: Sequence[Absent]) -> str:
    return f"not measured: {missing[0].reason}" if missing else "not part of this report"


def _parted(blocks: Sequence[Block], mode: str = "") -> tuple[tuple[Block, ...], list[Absent]]:
    """Return blocks without what is absent, and that; of a mode it has the mode's name."""
    kept: list[Block] = []
    missing: list[Absent] = []
    for block in blocks:
        if isinstance(block, Absent):
            missing.append(dataclasses.replace(block, what=f"{block.what} ({mode})") if mode else block)
        elif isinstance(block, OfMode | Fold | Grid):
            inner, absences = _parted(block.blocks, block.mode if isinstance(block, OfMode) else mode)
            missing += absences
            if inner:
                kept.append(dataclasses.replace(block, blocks=inner))
        else:
            kept.append(block)
    return tuple(kept), missing


def _not_measured(missing: Sequence[Absent]) -> Shown:
    told = by_reason((absent.what, absent.reason) for absent in missing)
    reasons = tuple((sentence(capital(reason)), what) for reason, what in told.items())
    return Shown(name=NOT_MEASURED, title="Not measured, and why", blocks=(NotMeasured(reasons=reasons),))


def _within(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, OfMode | Fold | Grid):
            yield from _within(block.blocks)
