"""A gate that launches: from options and two directories to a result. Imports late: --help loads every verb."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from rich.console import Console

from dpdoctor import rundir, units
from dpdoctor.cli import _options, _plan, _start
from dpdoctor.errors import UsageError
from dpdoctor.launch.progress import Progress
from dpdoctor.spec import Recording, RunSpec

if TYPE_CHECKING:
    from dpdoctor.gate.design import Plan
    from dpdoctor.gate.model import GateResult
    from dpdoctor.gate.paired import PairedGate
    from dpdoctor.gate.sides import Checkout

# Steps before the one that is counted: DDP arranges its buckets anew after the first.
EXACT_WARMUP = 5


def run_gate(options: dict[str, Any], console: Console) -> tuple[GateResult, Path]:
    """Return what comes of launching both checkouts, and the directory of the launches.

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


def checkout_of(label: str, spec: RunSpec, import_roots: tuple[str, ...] = ()) -> Checkout:
    """Return what is launched of a directory."""
    from dpdoctor.gate.sides import Checkout

    return Checkout(label=label, spec=spec, header=_start.header(spec), import_roots=import_roots)


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
        checkout_of(str(options[side]), _spec_in(options, options[side], wanted), roots) for side in ("base", "head")
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
