"""`dpdoctor gate`: judge whether training got slower, against another checkout or a baseline.

It leaves a file in each format, and prints one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec.structs import replace
from rich.console import Console

from dpdoctor import rundir, units
from dpdoctor.cli import Verb, _options, _plan, _report, _start
from dpdoctor.errors import UsageError
from dpdoctor.launch import interruption
from dpdoctor.launch.progress import Progress
from dpdoctor.spec import Recording, RunSpec

if TYPE_CHECKING:
    from dpdoctor.gate.design import Plan
    from dpdoctor.gate.model import GateResult
    from dpdoctor.gate.paired import PairedGate
    from dpdoctor.gate.sides import Checkout

TERMINAL, MARKDOWN, JSON, JUNIT, GITHUB = FORMATS = ("terminal", "markdown", "json", "junit", "github")
FILES = {JSON: "gate.json", MARKDOWN: "gate.md", JUNIT: "gate.xml"}
# What may be said of a run that exists already; everything else is about launches.
_OF_A_RUN = {"baseline", "exact", "tolerance", "calibrations", "out", "as_format", "quiet"}
# What has no meaning where only counters are compared.
_OF_TIME = {"tolerance", "quick", "max_pairs", "calibrations", "steps", "rounds", "time_budget"}
# After so many the first look is taken; of more than so many pairs no gate waits for the end.
LEAST_PAIRS, MOST_PAIRS = 7, 200
# Steps before the one that is counted: DDP arranges its buckets anew after the first.
EXACT_WARMUP = 5


@click.command(
    cls=Verb,
    short_help="Pass or fail a change by its training speed.",
    context_settings={"ignore_unknown_options": False},
)
@click.argument("script", required=False, metavar="[SCRIPT | RUN]")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--base", type=_options.DIRECTORY, metavar="DIR", help="Checkout to compare with; SCRIPT lies below it.")
@click.option("--head", type=_options.DIRECTORY, metavar="DIR", help="Checkout to judge; SCRIPT lies below it, too.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Judge RUN, a run directory, against this file of `dpdoctor baseline save`; nothing is launched.",
)
@click.option("--exact", is_flag=True, help="Compare what a step does, by its counters, instead of how long it takes.")
@_options.tolerance
@click.option("--quick", is_flag=True, help="One look after 5 pairs; only where launches differ by 1% at most.")
@click.option("--max-pairs", type=click.IntRange(LEAST_PAIRS, MOST_PAIRS), help="Most pairs to launch. Default: 20.")
@_options.calibrations
@_options.launching
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Result and launches. Default: below reports."
)
@click.option(
    "--format",
    "as_format",
    type=click.Choice(FORMATS),
    default=TERMINAL,
    show_default=True,
    help="What to print; json, markdown and junit are also files in --out.",
)
@click.option("--quiet", is_flag=True, help="Print the result only.")
@click.option("--verbose", is_flag=True, help="Also print what rank 0's script prints.")
@click.pass_context
def gate(context: click.Context, /, **options: Any) -> None:
    """Judge whether training got slower, and exit with 0 (pass), 3 (regressed) or 4 (could not judge).

    With --base and --head, both checkouts' SCRIPT is launched alternately until the sequential test decides. With
    --baseline, RUN is judged, which `dpdoctor profile --repeat` left.

    The script's own arguments follow after --, as in: dpdoctor gate --base main --head . train.py -- --epochs 1
    """
    _check(context, options)
    context.with_resource(interruption.heeding())
    console = _report.console_for(options["as_format"])
    head = options["head"] or Path()
    out: Path | None
    if options["baseline"] is None:
        result, out = _judge_checkouts(options, console)
    else:
        result, out = _judge_run(options), options["out"]
        if out is not None:
            rundir.create(out)
    if out is not None:
        _write(result, out, head)
    _show(result, console, options["as_format"], head)
    if out is not None and not options["quiet"]:
        console.print(f"Result: {out}", soft_wrap=True, highlight=False, markup=False)
    context.exit(_exit_code(result))


def _check(context: click.Context, options: dict[str, Any]) -> None:
    """Raise UsageError for options that do not go together."""
    given = {
        parameter.name: parameter.opts[-1]
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and context.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE
    }
    if options["exact"] and (useless := [option for name, option in given.items() if name in _OF_TIME]):
        raise UsageError(f"--exact compares counters, {useless[0]} is about time; leave one of them out")
    if options["quick"] and options["max_pairs"] is not None:
        raise UsageError("--quick is one look after 5 pairs; leave out --max-pairs")
    if options["baseline"] is not None:
        useless = [option for name, option in given.items() if name not in _OF_A_RUN]
        if useless or options["args"]:
            raise UsageError(
                f"with --baseline nothing is launched, so {useless[0] if useless else 'ARGS'} has no meaning: "
                "give it to `dpdoctor profile`, which makes the RUN"
            )
    elif options["base"] is None or options["head"] is None:
        raise UsageError(
            "give --base DIR and --head DIR to launch SCRIPT in two checkouts, or --baseline FILE to judge a RUN"
        )


def _judge_checkouts(options: dict[str, Any], console: Console) -> tuple[GateResult, Path]:
    """Return what comes of launching both checkouts, and the directory of the launches.

    Imports late, as all do from here on: --help loads every verb.

    Raises:
        UsageError, OutputError, BaselineError: what is asked for does not exist, or cannot be written or read.
    """
    # What is wrong with the options is said before anything is made.
    asked, plan = _options.tolerance_of(options), _plan_of(options)
    both = _both(options, _recording(options))
    root = options["out"] or _start.default_out(both[0].spec, "gate-")
    rundir.create(root)
    progress = _start.OfSides(_start.progress(console, quiet=options["quiet"], verbose=options["verbose"]))
    if not options["quiet"]:
        console.print(_announced(plan, exact=options["exact"]), soft_wrap=True, highlight=False)
    try:
        if options["exact"]:
            return _by_counters(root, both, progress), root
        from dpdoctor.gate import paired

        return paired.gate(_paired(options, root, both, plan, asked), progress), root
    finally:
        console.show_cursor()  # an error leaves the line of progress as it is


def _announced(plan: Plan, *, exact: bool) -> str:
    """Return what is going to be launched."""
    if exact:
        return "Plan: base and head are launched once, and base once more for what varies by nature"
    *earlier, last = (units.whole(look.pairs) for look in plan.looks)
    looks = f"{', '.join(earlier)} and {last}" if earlier else last
    return f"Plan: base and head are launched by turns, with looks after {looks} pairs, until it can tell"


def _recording(options: dict[str, Any]) -> Recording:
    wanted = _options.timing(options)
    if not options["exact"]:
        return wanted
    # A step is counted where conversion is proved; what follows would measure time.
    return replace(wanted, explain=True, warmup=wanted.warmup or EXACT_WARMUP)


def _plan_of(options: dict[str, Any]) -> Plan:
    from dpdoctor.gate import design

    if options["quick"]:
        return design.QUICK
    return design.sequence(options["max_pairs"] or design.USUAL_PAIRS)


def _both(options: dict[str, Any], wanted: Recording) -> tuple[Checkout, Checkout]:
    """Return base and head; their scripts are the same place in two directories."""
    from dpdoctor.gate.recorded import script_of
    from dpdoctor.gate.sides import import_roots

    roots = import_roots(options["base"], options["head"])
    base, head = (
        _start.checkout(str(options[side]), _spec_in(options, options[side], wanted), roots)
        for side in ("base", "head")
    )
    if script_of(base.spec) != script_of(head.spec):  # a whole path, where one checkout lies inside of the other
        raise UsageError(
            f"SCRIPT {options['script']} is one file, and base and head would be the same; "
            "give it as it is called inside of both checkouts"
        )
    return base, head


def _spec_in(options: dict[str, Any], directory: Path, wanted: Recording) -> RunSpec:
    from dpdoctor.gate.sides import holds_module

    spec = _options.spec(options, wanted, directory=directory)
    here = Path(spec.cwd)
    if not (holds_module(here, spec.target) if spec.is_module else Path(spec.target).is_relative_to(here)):
        what = f"MODULE {spec.target}" if spec.is_module else f"SCRIPT {options['script']}"
        raise UsageError(
            f"{what} does not lie in {directory}, so base and head would be the same; "
            "give it as it is called inside of both checkouts"
        )
    return spec


def _by_counters(root: Path, both: tuple[Checkout, Checkout], progress: Progress) -> GateResult:
    from dpdoctor.gate import exact

    base, head = both
    return exact.gate(exact.CountedGate(root=root, base=base, head=head), progress)


def _paired(
    options: dict[str, Any], root: Path, both: tuple[Checkout, Checkout], plan: Plan, asked: float
) -> PairedGate:
    from dpdoctor.gate import calibration, paired

    base, head = both
    return paired.PairedGate(
        root=root,
        base=base,
        head=head,
        plan=plan,
        asked=asked,
        calibrations=options["calibrations"] or calibration.default_directory(),
        explaining=_options.recording(options, ablations=_plan.known_ablations("all")),
    )


def _judge_run(options: dict[str, Any]) -> GateResult:
    """Return what becomes of a run that exists, against a baseline."""
    from dpdoctor.gate import against_baseline, baselines, calibration

    if options["script"] is None:
        raise UsageError("give the RUN to judge: the directory that `dpdoctor profile --repeat` printed at its end")
    asked = _options.tolerance_of(options)
    path = options["baseline"]
    baseline, name = baselines.read(path), baselines.name_of(path)
    run = rundir.read(Path(options["script"]))
    if options["exact"]:
        return against_baseline.gate_exactly(run, baseline, name)
    kept = options["calibrations"] or calibration.default_directory()
    return against_baseline.gate(run, baseline, name, asked=asked, calibrations=kept)


def _write(result: GateResult, directory: Path, head: Path) -> None:
    """Write the result into a directory that exists, for machines, a job's summary and a test report.

    Raises:
        OutputError: it cannot be written.
    """
    for as_format, name in FILES.items():
        rundir.write_whole(directory / name, _text(result, as_format, head).encode())


def _show(result: GateResult, console: Console, as_format: str, head: Path) -> None:
    """Print the result; `head` is the checkout in whose repository GitHub's file names are."""
    if as_format == TERMINAL:
        from dpdoctor.report.gate.text import for_terminal

        console.print(for_terminal(result))
    else:
        click.echo(_text(result, as_format, head), nl=False)


def _text(result: GateResult, as_format: str, head: Path) -> str:
    """Return the result in a format other than the terminal's."""
    # Late, as all reports are: plotly and scipy take their time.
    from dpdoctor.report.gate import ci
    from dpdoctor.report.gate.text import for_comment

    if as_format == JSON:
        return rundir.indented(result).decode()
    if as_format == MARKDOWN:
        return for_comment(result)
    return ci.junit(result) if as_format == JUNIT else ci.workflow_commands(result, _repository_of(head.resolve()))


def _repository_of(checkout: Path) -> Path:
    """Return the directory of the repository that a checkout is, or is a part of; without one, the checkout."""
    return next((path for path in (checkout, *checkout.parents) if (path / ".git").exists()), checkout)


def _exit_code(result: GateResult) -> int:
    from dpdoctor.gate.model import EXIT_CODES

    return EXIT_CODES[result.outcome]


COMMAND = gate
