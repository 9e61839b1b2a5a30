"""`dpdoctor profile`: run a script in one or more modes and leave a run directory with a report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace
from rich.console import RenderableType

from dpdoctor import rundir
from dpdoctor.cli import Verb, _options, _plan, _report, _start
from dpdoctor.errors import BaselineError, InterruptedByError, ModeFailedError
from dpdoctor.launch import interruption, launcher
from dpdoctor.records import LaunchRecord
from dpdoctor.spec import NATIVE, RunHeader, RunSpec, starts_its_ranks

if TYPE_CHECKING:
    from dpdoctor.analysis import Diagnosis


class _Renamed(click.Option):
    """An option that still takes its former name, the last of its names, which help leaves out."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option as help shows it."""
        record = super().get_help_record(ctx)
        return record and (record[0].replace(f", {self.opts[-1]}", ""), record[1])


@click.command(
    cls=Verb,
    short_help="Run a script in each mode; write a report.",
    context_settings={"ignore_unknown_options": False},
)
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@_options.launching
@click.option("--no-baseline", is_flag=True, help="Do not run `single` for comparison.")
@click.option(
    "--no-control",
    is_flag=True,
    help="Skip the bare launches that measure what watching costs.",
)
@click.option(
    "--trace-steps",
    type=click.IntRange(0),
    default=12,
    show_default=True,
    metavar="N",
    help="Steps to trace; 0: no trace.",
)
@_options.comm_kernels
@click.option(
    "--ablations",
    "--arms",
    "ablations",
    cls=_Renamed,
    default="all",
    show_default=True,
    metavar="NAMES",
    help="Ablation experiments: all, none, or names with commas.",
)
@click.option(
    "--then",
    type=click.Choice(["stop", "go-on"]),
    default="stop",
    show_default=True,
    help="Once enough is recorded, end a script of mode native, or let it run on, with its files its own.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Launches of every mode."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory. Default: reports/SCRIPT-TIME."
)
@click.option("--keep-going", is_flag=True, help="Exit with 0 even when a mode failed.")
@click.option("--explain", is_flag=True, help="Take two steps, show what was wrapped and sharded, and stop.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
@_report.options
@click.option("--verbose", is_flag=True, help="Also print what rank 0's script prints.")
def profile(**options: Any) -> None:
    """Run SCRIPT as it is on one device and in the given modes; write a report.

    The script's own arguments follow after --, as in: dpdoctor profile train.py --modes ddp -- --epochs 1
    """
    console = _report.console_for(options["as_format"], quiet=options["quiet"])
    # Without --modes a script may turn out to be native.
    is_final = options["explain"] or _options.is_given("modes")
    spec = _spec(options, is_final=is_final)
    root = options["out"] or _start.default_out(spec)
    launcher.create(root, _start.header(spec))
    console.print(_plan.describe(spec), soft_wrap=True, highlight=False)
    is_enough = (lambda _: False) if is_final else launcher.distributes_itself
    with interruption.heeding() as heard:
        progress = _start.progress(console, quiet=options["quiet"], verbose=options["verbose"])
        try:
            records = launcher.launch(root, spec, progress, is_enough)
            if is_enough(records[-1]):
                spec = _as_native(options, records[-1])
                console.print(_plan.describe(spec), soft_wrap=True, highlight=False)
                launcher.begin_anew(root, _start.header(spec), records)
                records = launcher.launch(root, spec, progress)
            _add_launch_spread(root)
            if _plan.tries_loaders(spec) and not heard.name:
                launcher.try_loaders(root, spec, _report.settings_to_try(root), progress)
            if spec.control and not heard.name:
                launcher.settle_own_cost(root, spec, lambda: _report.own_cost_is_clear(root), progress)
        finally:
            console.show_cursor()  # an error leaves the line of progress as it is
        _report.make(
            root,
            console,
            as_format=options["as_format"],
            plotlyjs=options["plotlyjs"],
            show=_explanation if options["explain"] else None,
        )
    if heard.name:
        raise InterruptedByError(heard.name, heard.exit_code)
    _check_outcomes(records, spec, keep_going=options["keep_going"], quiet=options["quiet"])


def _as_native(options: dict[str, Any], refused: LaunchRecord) -> RunSpec:
    """Return the run of a script that turned out to distribute itself: as it is, on as many ranks as modes have."""
    if options["launcher"]:
        return _spec({**options, "modes": NATIVE})
    is_plain = starts_its_ranks(refused.reason or "")
    launcher = None if is_plain else shlex.join(_plan.torchrun(options["nproc"] or _plan.default_ranks()))
    return _spec({**options, "modes": NATIVE, "nproc": None, "launcher": launcher})


def _spec(options: dict[str, Any], *, is_final: bool = True) -> RunSpec:
    recording = _options.recording(
        options,
        trace_steps=options["trace_steps"],
        comm_kernels=options["comm_kernels"],
        explain=options["explain"],
        ablations=_plan.known_ablations(options["ablations"]),
    )
    return _options.spec(
        options,
        recording,
        is_final=is_final,
        baseline=not options["no_baseline"],
        repeat=options["repeat"],
        go_on=options["then"] == "go-on",
        control=not (options["no_control"] or options["no_baseline"] or options["explain"]),
    )


def _add_launch_spread(root: Path) -> None:
    """Let a run's header say what was calibrated of its workload here. What is damaged keeps nobody from profiling."""
    from dpdoctor.gate import calibration

    header = rundir.read_json(root / rundir.HEADER, RunHeader)
    try:
        found = calibration.find(calibration.default_directory(), header.spec, header.fingerprint)
    except BaselineError as error:
        click.echo(f"Intervals hold within launches only: {error.message}", err=True)
        return
    if found is None:
        return
    spreads, unlike = calibration.launch_spreads(found, rundir.read(root))
    for told in unlike:
        click.echo(f"Intervals hold within launches only: {told}. Calibrate anew", err=True)
    rundir.write_json(root / rundir.HEADER, replace(header, launch_spread=spreads))


def _explanation(analysis: Diagnosis) -> RenderableType:
    from dpdoctor.report.formats import terminal

    return terminal.explanation(analysis)


def _check_outcomes(records: list[LaunchRecord], spec: RunSpec, *, keep_going: bool, quiet: bool) -> None:
    """Raise where modes asked for by name did not end well; why is said already, unless `quiet`.

    A job that went on and failed is none that ended well, though what was recorded of it before is.
    """
    if keep_going:
        return
    failed = {
        record.mode: record.reason
        for record in reversed(records)  # of several launches the first one's reason
        if record.mode in spec.requested_modes
        and (record.status == "failed" or (spec.go_on and any(record.exit_codes)))
    }
    if failed:
        names = [name for name in spec.requested_modes if name in failed]
        why = f": {failed[names[0]]}" if quiet else ""
        raise ModeFailedError(f"mode{'s' * (len(names) > 1)} {', '.join(names)} failed{why}")


COMMAND = profile
