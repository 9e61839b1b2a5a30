"""What a terminal shows of an analysis."""

from __future__ import annotations

from rich.console import Console

from dpdoctor.analysis import Analysis
from dpdoctor.report.formats import terminal


def shown(analysis: Analysis, width: int = 200) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(terminal.summary(analysis))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
