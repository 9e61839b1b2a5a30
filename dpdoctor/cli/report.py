"""`dpdoctor report`: make run.json and report.html anew from a run directory."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from dpdoctor.cli import _report


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def report(run_dir: Path, open_page: bool) -> None:
    """Analyse RUN_DIR again, write its report and print the summary."""
    _report.make(run_dir, Console(), open_page=open_page)


COMMAND = report
