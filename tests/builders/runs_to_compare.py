"""Runs that differ in something known."""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis import Analysis, analyse
from dpdoctor.spec import RunHeader
from tests.builders import records


def even(ms: float, *, mode: str = "single") -> Analysis:
    """Return a run of one mode whose steps all last the same, in three windows."""
    return analyse(records.run({mode: [records.launch(records.even_rank(ms, num_windows=3), mode=mode)]}))


def with_header(analysis: Analysis, **fields: object) -> Analysis:
    """Return the same run with another header, analysed anew."""
    header: RunHeader = replace(analysis.run.header, **fields)
    return analyse(replace(analysis.run, header=header))
