"""What the verbs end with: a run analysed, its report written, its answer printed."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dpdoctor import rundir
from dpdoctor.records import Run
from dpdoctor.spec import BASELINE, LoaderSetting

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dpdoctor.analysis import Diagnosis

TERMINAL, MARKDOWN, JSON = FORMATS = ("terminal", "markdown", "json")
INLINE, DIRECTORY = PLOTLYJS = ("inline", "directory")

Verb = TypeVar("Verb", bound=Callable[..., Any])

format_option = click.option(
    "--format",
    "as_format",
    type=click.Choice(FORMATS),
    default=TERMINAL,
    show_default=True,
    help="What to print. With markdown, a comment for a pull request, or json, run.json, stdout holds only that.",
)
plotlyjs_option = click.option(
    "--plotlyjs",
    type=click.Choice(PLOTLYJS),
    default=INLINE,
    show_default=True,
    help="Where the report has its 2 MB of plotly.js: in it, or beside the run directory, for all reports there.",
)


def options(verb: Verb) -> Verb:
    """Give a verb the options that say how its run is shown."""
    return format_option(plotlyjs_option(verb))


def console_for(as_format: str, *, quiet: bool = False) -> Console:
    """Return the console for people: stdout, unless that is for another format."""
    from rich.console import Console  # here: what is printed for programs needs none

    return Console(stderr=as_format != TERMINAL, quiet=quiet)


def make(
    root: Path,
    console: Console,
    *,
    as_format: str,
    plotlyjs: str,
    show: Callable[[Diagnosis], RenderableType] | None = None,
    open_page: bool = False,
) -> None:
    """Write run.json, report.html and, of traces, a timeline; print the run as `as_format` says.

    `show` makes what people see of the run, in the place of the terminal's summary or beside another format.

    Raises:
        RunDirectoryError: not a run directory, or damaged.
        OutputError: something cannot be written.
    """
    packing = Thread(target=_pack_plotly, args=(plotlyjs,))
    packing.start()
    analysis, path = _analysed(rundir.read(root)), root / rundir.REPORT
    packing.join()
    _write(root, analysis, plotlyjs)
    if show:
        console.print(show(analysis))
    if not show or as_format != TERMINAL:
        _print(analysis, console, as_format)
    console.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
    if (root / rundir.TIMELINE).exists():
        console.print(
            f"Trace:  {root / rundir.TIMELINE} (ui.perfetto.dev)", soft_wrap=True, highlight=False, markup=False
        )
    if open_page:
        click.launch(str(path))


def settings_to_try(root: Path) -> dict[str, LoaderSetting]:
    """Return by mode the setting of its loader that a run promises most of, and that was not measured yet."""
    from dpdoctor.analysis import analyse
    from dpdoctor.analysis.loader.trial import to_try

    return to_try(analyse(rundir.read(root)).summary.modes)


def own_cost_is_clear(root: Path) -> bool:
    """Return whether a run tells well enough what watching the baseline takes of a step, or cannot tell.

    That it is too much one launch does not tell: what disturbed it would be taken for it.
    """
    from dpdoctor.analysis import analyse
    from dpdoctor.analysis.controls import is_known, is_too_much

    run = rundir.read(root)
    baseline = analyse(run).summary.modes.get(BASELINE)
    if baseline is None or baseline.native is not None:  # which has no bare launches
        return True
    share = baseline.observer_overhead
    return is_known(share) and (bool(run.watched) or not is_too_much(share))


def print_run(run: Run, *, as_format: str) -> None:
    """Print a run of which no directory is kept, as Markdown or JSON."""
    click.echo(_text(_analysed(run), as_format), nl=False)


def _analysed(run: Run) -> Diagnosis:
    """Return what the run's records say. Imports late, as all do from here on: numpy and plotly take their time."""
    from dpdoctor.rules import diagnosed

    return diagnosed(run)


def _pack_plotly(place: str) -> None:
    """Pack plotly.js if it goes into the page; beside the analysis, as what packs it lets other threads run."""
    if place != DIRECTORY:
        from dpdoctor.report import page

        page.plotly_script("")


def _write(root: Path, analysis: Diagnosis, plotlyjs: str) -> None:
    from dpdoctor.report import page
    from dpdoctor.report.documents.run import of_run
    from dpdoctor.report.traces.timeline import timeline

    rundir.write_json(root / rundir.SUMMARY, analysis.summary)
    link = _shared_plotly(root) if plotlyjs == DIRECTORY else ""
    rundir.write_whole(root / rundir.REPORT, page.render(of_run(analysis), plotly_link=link).encode())
    if events := timeline(analysis):
        # Without the time of writing in it: the same run gives the same file.
        rundir.write_whole(root / rundir.TIMELINE, gzip.compress(rundir.encode({"traceEvents": events}), mtime=0))


def _shared_plotly(root: Path) -> str:
    """Write plotly.js beside the run directory, where all runs find it that lie there, and return the report's link.

    A file that is there and is the same is left alone: other reports may be reading it.
    """
    from dpdoctor.report import page

    path, data = root.resolve().parent / page.PLOTLY_FILE, page.plotly_source().encode()
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return f"../{path.name}"
    rundir.write_whole(path, data)
    return f"../{path.name}"


def _print(analysis: Diagnosis, console: Console, as_format: str) -> None:
    if as_format == TERMINAL:
        from dpdoctor.report.formats import terminal

        console.print(terminal.summary(analysis))
    else:
        click.echo(_text(analysis, as_format), nl=False)


def _text(analysis: Diagnosis, as_format: str) -> str | bytes:
    """Return what is printed for other programs: Markdown or JSON."""
    if as_format == JSON:
        return rundir.indented(analysis.summary)
    from dpdoctor.report.formats import markdown

    return markdown.comment(analysis)
