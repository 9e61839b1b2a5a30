"""What a gate leaves: a file in each format, and one of them printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from dpdoctor import rundir

if TYPE_CHECKING:
    from dpdoctor.gate.model import GateResult

TERMINAL, MARKDOWN, JSON, JUNIT, GITHUB = FORMATS = ("terminal", "markdown", "json", "junit", "github")
FILES = {JSON: "gate.json", MARKDOWN: "gate.md", JUNIT: "gate.xml"}


def write(result: GateResult, directory: Path, head: Path) -> None:
    """Write the result into a directory that exists, for machines, a job's summary and a test report.

    Raises:
        OutputError: it cannot be written.
    """
    for as_format, name in FILES.items():
        rundir.write_whole(directory / name, text(result, as_format, head).encode())


def show(result: GateResult, console: Console, as_format: str, head: Path) -> None:
    """Print the result; `head` is the checkout that GitHub's file names are relative to."""
    if as_format == TERMINAL:
        from dpdoctor.report.gate import terminal

        console.print(terminal.render(result))
    else:
        click.echo(text(result, as_format, head), nl=False)


def text(result: GateResult, as_format: str, head: Path) -> str:
    """Return the result in a format other than the terminal's."""
    # Late, as all reports are: plotly and scipy take their time.
    from dpdoctor.report.gate import annotations, junit, markdown

    if as_format == JSON:
        return rundir.indented(result).decode()
    if as_format == MARKDOWN:
        return markdown.comment(result)
    return junit.document(result) if as_format == JUNIT else annotations.commands(result, head.resolve())
