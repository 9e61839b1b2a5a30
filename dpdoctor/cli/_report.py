"""What the verbs end with: a run directory analysed, its report written, its answer printed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType

from dpdoctor import rundir

if TYPE_CHECKING:
    from dpdoctor.analysis import Analysis


def make(
    root: Path,
    console: Console,
    *,
    show: Callable[[Analysis], RenderableType] | None = None,
    open_page: bool = False,
) -> None:
    """Write run.json, report.html and, of traces, a timeline; print what `show` makes of the run, else the summary.

    Imports late: scipy and plotly take their time.

    Raises:
        RunDirectoryError: not a run directory, or damaged.
    """
    from dpdoctor.analysis import analyse
    from dpdoctor.report import page, terminal
    from dpdoctor.report.traces.timeline import timeline
    from dpdoctor.rules import diagnose

    analysis, path = diagnose(analyse(rundir.read(root))), root / rundir.REPORT
    rundir.write_json(root / rundir.SUMMARY, analysis.summary)
    rundir.write_whole(path, page.render(analysis).encode())
    if events := timeline(analysis):
        # Without the time of writing in it: the same run gives the same file.
        rundir.write_whole(root / rundir.TIMELINE, gzip.compress(rundir.encode({"traceEvents": events}), mtime=0))
    console.print((show or terminal.summary)(analysis))
    console.print(f"Report: {path}", soft_wrap=True, highlight=False)
    if open_page:
        click.launch(str(path))
