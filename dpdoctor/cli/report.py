"""`dpdoctor report`: make run.json and report.html anew from a run directory."""

from __future__ import annotations

from pathlib import Path

import click

from dpdoctor.cli import Verb, _report


@click.command(cls=Verb, short_help="Make a run's report and summary anew.")
@click.argument("run_dir", type=click.Path(path_type=Path))
@_report.options
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def report(run_dir: Path, as_format: str, plotlyjs: str, open_page: bool) -> None:
    """Analyse RUN_DIR again, write its report and print the summary."""
    console = _report.console_for(as_format)
    _report.make(run_dir, console, as_format=as_format, plotlyjs=plotlyjs, open_page=open_page)


COMMAND = report
