"""`dpdoctor report`: make run.json and report.html anew from a run directory."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from dpdoctor import rundir


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def report(run_dir: Path, open_page: bool) -> None:
    """Analyse RUN_DIR again, write its report and print the summary."""
    from dpdoctor.analysis import analyse
    from dpdoctor.report import page, terminal

    analysis = analyse(rundir.read(run_dir))
    path = run_dir / rundir.REPORT
    rundir.write_json(run_dir / rundir.SUMMARY, analysis.summary)
    rundir.write_whole(path, page.render(analysis).encode())
    console = Console()
    console.print(terminal.summary(analysis))
    console.print(f"Report: {path}", soft_wrap=True, highlight=False)
    if open_page:
        click.launch(str(path))


COMMAND = report
