"""`dpdoctor profile`: run a script in one or more modes and leave a run directory with a report."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType

from dpdoctor import __version__, redact
from dpdoctor.cli import _plan, _report
from dpdoctor.errors import ModeFailedError, UsageError
from dpdoctor.launch import launcher, machine
from dpdoctor.launch.progress import LiveProgress, PlainProgress, Progress, Silence
from dpdoctor.records import LaunchRecord
from dpdoctor.spec import BATCH_RULES, Recording, RunHeader, RunSpec

if TYPE_CHECKING:
    from dpdoctor.analysis import Analysis


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE", help="Profile a module instead, as `python -m MODULE` would run it.")
@click.option("--modes", default="ddp", show_default=True, metavar="NAMES", help="Modes to run, separated by commas.")
@click.option("--no-baseline", is_flag=True, help="Do not run `single` for comparison.")
@click.option(
    "--nproc", type=click.IntRange(1), help="Devices per mode. Default: all GPUs; on the CPU 2, or the cores."
)
@click.option(
    "--dp-devices", metavar="GPUS", help="GPU of each replica in mode dp; 0,0 puts two on one. Default: each GPU once."
)
@click.option("--batch", type=click.Choice(BATCH_RULES), help="Each device takes whole batches, or its part of each.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of torch, numpy and random."
)
@click.option(
    "--warmup", type=click.IntRange(1), metavar="STEPS", help="Steps before measuring. Default: until steady."
)
@click.option("--steps", type=click.IntRange(1), metavar="STEPS", help="Steps per window. Default: 0.5 s, at least 4.")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="Most windows to measure.")
@click.option(
    "--time-budget", type=float, default=60.0, show_default=True, metavar="SECONDS", help="Training time per mode."
)
@click.option(
    "--trace-steps", type=click.IntRange(0), default=12, show_default=True, help="Steps to trace; 0: no trace."
)
@click.option(
    "--arms",
    default="all",
    show_default=True,
    metavar="NAMES",
    help="What to switch off in windows between the full ones, to see what it costs: all, none, or names with commas.",
)
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Launches of every mode.")
@click.option(
    "--samples-per-step",
    type=click.IntRange(1),
    metavar="N",
    help="Samples of one device in a step, if not counted right.",
)
@click.option(
    "--fsdp-wrap",
    default="auto",
    show_default=True,
    metavar="CLASSES",
    help="Classes of the modules FSDP shards as one.",
)
@click.option(
    "--timeout",
    type=float,
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="End a mode that makes no progress for so long.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory. Default: reports/SCRIPT-TIME."
)
@click.option("--allow-writes", is_flag=True, help="Let the script really write, change and remove files.")
@click.option("--keep-going", is_flag=True, help="Exit with 0 even when a mode failed.")
@click.option("--explain", is_flag=True, help="Take two steps, show how the script was adopted, and stop.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
@_report.options
@click.option("--verbose", is_flag=True, help="Also print what rank 0's script prints.")
def profile(**options: Any) -> None:
    """Run SCRIPT as it is on one device and in the given modes; write a report.

    The script's own arguments follow after --, as in: dpdoctor profile train.py --modes ddp -- --epochs 1
    """
    console = _report.console_for(options["as_format"], quiet=options["quiet"])
    spec = _spec(options)
    root = options["out"] or Path("reports", f"{_stem(spec)}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
    launcher.create(root, _header(spec))
    console.print(_plan.describe(spec), soft_wrap=True, highlight=False)
    try:
        records = launcher.launch(root, spec, _progress(console, options))
    finally:
        console.show_cursor()  # a second Ctrl-C leaves the line of progress as it is
    _report.make(
        root,
        console,
        as_format=options["as_format"],
        plotlyjs=options["plotlyjs"],
        show=_explanation if options["explain"] else None,
    )
    _judge(records, spec, keep_going=options["keep_going"], quiet=options["quiet"])


def _spec(options: dict[str, Any]) -> RunSpec:
    script, args = options["script"], options["args"]
    if options["module"] is not None and script is not None:
        script, args = None, (script, *args)
    for name in ("time_budget", "timeout"):
        if not 0 < options[name] < math.inf:
            raise UsageError(f"--{name.replace('_', '-')} is {options[name]:g}; it must be above 0 and finite")
    recording = Recording(
        warmup=options["warmup"],
        steps=options["steps"],
        rounds=options["rounds"],
        time_budget_s=options["time_budget"],
        trace_steps=options["trace_steps"],
        explain=options["explain"],
        arms=_plan.known_arms(options["arms"]),
    )
    return _plan.make_spec(
        _plan.Options(
            script=script,
            module=options["module"],
            args=args,
            baseline=not options["no_baseline"],
            fsdp_wrap=_class_names(options["fsdp_wrap"]),
            recording=recording,
            **{
                name: options[name]
                for name in (
                    "modes",
                    "nproc",
                    "dp_devices",
                    "batch",
                    "seed",
                    "repeat",
                    "timeout",
                    "samples_per_step",
                    "allow_writes",
                )
            },
        )
    )


def _class_names(text: str) -> tuple[str, ...] | None:
    """Return the class names of --fsdp-wrap; None for `auto`."""
    return None if text == "auto" else tuple(name.strip() for name in text.split(",") if name.strip())


def _stem(spec: RunSpec) -> str:
    name = spec.target if spec.is_module else Path(spec.target).stem
    return re.sub(r"[^\w.-]+", "-", name)


def _header(spec: RunSpec) -> RunHeader:
    return RunHeader(
        dpdoctor=__version__,
        created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        command=tuple(redact.arguments(["dpdoctor", *sys.argv[1:]])),
        spec=dataclasses.replace(spec, args=tuple(redact.arguments(spec.args))),
        fingerprint=machine.fingerprint(None if spec.is_module else Path(spec.target)),
    )


def _progress(console: Console, options: dict[str, Any]) -> Progress:
    if options["quiet"]:
        return Silence()
    kind = LiveProgress if console.is_terminal else PlainProgress
    return kind(console, echo=options["verbose"])


def _explanation(analysis: Analysis) -> RenderableType:
    from dpdoctor.report.formats import explain

    return explain.explanation(analysis)


def _judge(records: list[LaunchRecord], spec: RunSpec, *, keep_going: bool, quiet: bool) -> None:
    """Raise for the first mode asked for by name that did not end well; why is said already, unless `quiet`."""
    for record in records:
        bad = record.status in ("failed", "interrupted")
        if bad and not keep_going and (record.mode in spec.requested_modes or record.status == "interrupted"):
            raise ModeFailedError(f"mode {record.mode} {record.status}{f': {record.reason}' if quiet else ''}")


COMMAND = profile
