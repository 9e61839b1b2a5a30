"""`dpdoctor calibrate`: how much launches of the same code differ on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from dpdoctor import rundir
from dpdoctor.cli import Verb, _options, _report, _start
from dpdoctor.launch import interruption

if TYPE_CHECKING:
    from dpdoctor.gate.calibration import Calibrated

# Noise cannot be told from fewer.
LEAST_PAIRS = 10
COULD_NOT = 4
REPLACED = "Another was replaced; if it was of another project, give each its own --calibrations"


@click.command(
    cls=Verb,
    short_help="Measure launch-to-launch noise on this machine.",
    context_settings={"ignore_unknown_options": False},
)
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--pairs", type=click.IntRange(LEAST_PAIRS), default=LEAST_PAIRS, show_default=True, help="Pairs of launches."
)
@_options.tolerance
@_options.calibrations
@_options.launching
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Launches. Default: below reports.")
@click.option("--quiet", is_flag=True, help="Print the result only.")
@click.option("--verbose", is_flag=True, help="Also print what rank 0's script prints.")
@click.pass_context
def calibrate(context: click.Context, /, **options: Any) -> None:
    """Measure launch-to-launch noise, so that `dpdoctor gate` knows the smallest slowdown it can detect here.

    Run it in the checkout, with the same script, options and arguments as the gate. What it finds is kept for this
    machine.
    """
    from dpdoctor.gate import calibration

    console = _report.console_for(_report.TERMINAL)
    asked = _options.tolerance_of(options)
    spec = _options.spec(options, _options.timing(options))
    checkout = _start.checkout(spec.cwd, spec)
    directory = options["calibrations"] or calibration.default_directory()
    calibration.prepare(directory)
    root = options["out"] or _start.default_out(spec, "calibrate-")
    rundir.create(root)
    context.with_resource(interruption.heeding())
    progress = _start.OfSides(_start.progress(console, quiet=options["quiet"], verbose=options["verbose"]))
    try:
        done = calibration.calibrate(root, checkout, pairs=options["pairs"], progress=progress)
    finally:
        console.show_cursor()  # an error leaves the line of progress as it is
    _keep(done, directory, asked, console)
    if done.calibration is None:
        context.exit(COULD_NOT)


def _keep(done: Calibrated, directory: Path, asked: float, console: Console) -> None:
    """Print and keep what was learned or, where nothing was, say why."""
    from dpdoctor.gate import calibration
    from dpdoctor.report.gate import noise

    if done.calibration is None:
        console.print(noise.not_calibrated(done.launched))
        return
    console.print(noise.render(done.calibration, asked))
    path, replaced = calibration.keep(directory, done.calibration)
    for told in replaced:
        console.print(f"{REPLACED}: {told}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"Calibration: {path}", soft_wrap=True, highlight=False, markup=False)


COMMAND = calibrate
