"""`dpdoctor compare`: two or more runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console

from dpdoctor import rundir
from dpdoctor.cli import Verb
from dpdoctor.errors import UsageError

if TYPE_CHECKING:
    from dpdoctor.analysis.comparison import Comparison

FORMATS = ("terminal", "markdown", "json")


@click.command(cls=Verb, short_help="Show what changed between runs.")
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_A RUN_B...")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page, one HTML file.")
@click.option(
    "--format",
    "as_format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="What to print; markdown fits a comment on a pull request.",
)
def compare(run_dirs: tuple[Path, ...], out: Path | None, as_format: str) -> None:
    """Compare run directories, each with the first: throughput, step, time breakdown, counters, findings, environment.

    A change is reported only if its 95% interval excludes zero.
    """
    if len(run_dirs) < 2:
        raise UsageError("one run alone cannot be compared; give two run directories or more")
    comparison = _comparison(run_dirs)
    if out is not None:
        from dpdoctor.report import page
        from dpdoctor.report.documents.comparison import of_comparison

        rundir.write_whole(out, page.render(of_comparison(comparison)).encode())
    _print(comparison, as_format)
    if out is not None:
        click.echo(f"Report: {out}", err=as_format != FORMATS[0])


def _comparison(run_dirs: tuple[Path, ...]) -> Comparison:
    """Return the runs side by side, analysed anew: by the same rules, whatever version wrote them."""
    from dpdoctor.analysis.comparison import compare as compare_analyses
    from dpdoctor.rules import diagnosed

    return compare_analyses([diagnosed(rundir.read(path)) for path in run_dirs])


def _print(comparison: Comparison, as_format: str) -> None:
    from dpdoctor.report.comparison.text import for_comment, for_terminal

    if as_format == "json":
        click.echo(msgspec.json.format(rundir.encode(comparison), indent=1))
    elif as_format == "markdown":
        click.echo(for_comment(comparison), nl=False)
    else:
        Console().print(for_terminal(comparison))


COMMAND = compare
