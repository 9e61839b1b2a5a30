"""The blocks of a page's views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dpdoctor.analysis import Analysis, Diagnosis
from dpdoctor.report.blocks import Block, Chart, Columns, Fold, Grid, OfMode, View
from dpdoctor.report.documents.run import SECTIONS as IN_ORDER

VIEWS: dict[str, View[Diagnosis]] = {view.name: view for section in IN_ORDER for view in section.views}


def flat(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Columns | Fold | Grid | OfMode):
            yield from flat(block.blocks)


def build(name: str, analysis: Analysis) -> list[Block]:
    return list(flat(VIEWS[name].build(analysis)))


def applying(analysis: Analysis) -> dict[str, list[Block]]:
    """Return the blocks of every view that is a part of this run's page."""
    return {name: build(name, analysis) for name, view in VIEWS.items() if view.applies(analysis)}


def every_chart(analysis: Analysis) -> list[Chart]:
    return [block for blocks in applying(analysis).values() for block in only(Chart, blocks)]


def charts(name: str, analysis: Analysis) -> dict[str, Chart]:
    return {block.title: block for block in build(name, analysis) if isinstance(block, Chart)}


def only(kind: type[Any], blocks: Sequence[Block]) -> list[Any]:
    return [block for block in blocks if isinstance(block, kind)]
