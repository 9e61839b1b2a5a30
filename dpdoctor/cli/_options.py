"""The options that say what is launched and how much is recorded, for every verb that launches."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dpdoctor.errors import UsageError
from dpdoctor.spec import BATCH_RULES, NATIVE, WALLS, Recording, RunSpec

Verb = TypeVar("Verb", bound=Callable[..., Any])

# In the order in which help lists them.
_LAUNCHING = (
    click.option("-m", "module", metavar="MODULE", help="Run a module instead, as `python -m MODULE` would."),
    click.option(
        "--modes", default="ddp", show_default=True, metavar="NAMES", help="Modes to run, separated by commas."
    ),
    click.option(
        "--nproc",
        type=click.IntRange(1),
        metavar="N",
        help="Devices per mode. Default: all GPUs; on the CPU 2, or the cores.",
    ),
    click.option(
        "--launcher",
        metavar="COMMAND",
        help="What starts the ranks of mode native. Default: torchrun if --nproc is given, else the script itself.",
    ),
    click.option(
        "--dp-devices",
        metavar="GPUS",
        help="GPU of each replica in mode dp; 0,0 puts two on one. Default: each GPU once.",
    ),
    click.option(
        "--batch", type=click.Choice(BATCH_RULES), help="Each device takes whole batches, or its part of each."
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**32 - 1),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of torch, numpy and random.",
    ),
    click.option(
        "--seed-per-rank", is_flag=True, help="Let ranks draw other random numbers, once the script has an optimizer."
    ),
    click.option(
        "--warmup", type=click.IntRange(1), metavar="STEPS", help="Steps before measuring. Default: until steady."
    ),
    click.option(
        "--steps", type=click.IntRange(1), metavar="STEPS", help="Steps per window. Default: 0.5 s, at least 4."
    ),
    click.option(
        "--rounds",
        type=click.IntRange(1),
        default=10,
        show_default=True,
        metavar="N",
        help="Most rounds, each a window as it is and one per ablation.",
    ),
    click.option(
        "--time-budget",
        type=float,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Training time of each launch, after its first step.",
    ),
    click.option(
        "--samples-per-step",
        type=click.IntRange(1),
        metavar="N",
        help="Samples of one device in a step, if not counted right.",
    ),
    click.option(
        "--fsdp-wrap",
        default="auto",
        show_default=True,
        metavar="CLASSES",
        help="Classes of the modules FSDP shards as one.",
    ),
    click.option(
        "--timeout",
        type=float,
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="End a mode that makes no progress for so long.",
    ),
    click.option("--allow-writes", is_flag=True, help="Let the script really write, change and remove files."),
    click.option(
        "--wall",
        type=click.Choice(WALLS),
        default=WALLS[0],
        show_default=True,
        help="What keeps the script from your files, or the next where the kernel forbids it.",
    ),
)
# Those that a RunSpec is made of as they are.
_AS_THEY_ARE = (
    *("modes", "nproc", "dp_devices", "batch", "seed", "seed_per_rank", "timeout", "samples_per_step", "allow_writes"),
    *("launcher", "wall"),
)

DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)
tolerance = click.option(
    "--tolerance",
    type=float,
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Slowdown of a step to allow; where launches differ more, it is widened, and that said.",
)
calibrations = click.option(
    "--calibrations",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the noise of machines is kept. Default: dpdoctor/calibrations in your XDG data directory.",
)


def _regular_expression(context: click.Context, option: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Return the value of an option that is a regular expression.

    Raises:
        UsageError: it is none.
    """
    if value is None:
        return None
    try:
        matches_all = re.search(value, "") is not None
    except re.error as error:
        raise UsageError(f"{option.opts[0]} {value!r} is no regular expression of Python: {error}") from error
    if matches_all:
        raise UsageError(f"{option.opts[0]} {value!r} is found in every name; write what only the ones meant have")
    return value


comm_kernels = click.option(
    "--comm-kernels",
    metavar="REGEX",
    callback=_regular_expression,
    help="Kernels that communicate, too: a regular expression found in their names, whatever the case.",
)


def launching(verb: Verb) -> Verb:
    """Give a verb the options that say what is launched."""
    return functools.reduce(lambda given, option: option(given), reversed(_LAUNCHING), verb)


def recording(options: dict[str, Any], **more: Any) -> Recording:
    """Return how much the options ask to record; what no such option says, by keyword.

    Raises:
        UsageError: --time-budget is no time.
    """
    return Recording(
        warmup=options["warmup"],
        steps=options["steps"],
        rounds=options["rounds"],
        time_budget_s=above_zero("--time-budget", options["time_budget"]),
        **more,
    )


def timing(options: dict[str, Any]) -> Recording:
    """Return a recording of nothing but the time of steps, for launches that are compared with each other."""
    return recording(options, trace_steps=0, loader_trials=False)


def spec(
    options: dict[str, Any],
    wanted: Recording,
    *,
    baseline: bool = False,
    repeat: int = 1,
    control: bool = False,
    directory: Path | None = None,
    go_on: bool = False,
    is_final: bool = True,
) -> RunSpec:
    """Return the run that the options ask for, in a directory; None: the present one.

    `is_final`: no other modes than these are run, whatever the script turns out to be.

    Raises:
        UsageError: something named does not exist, cannot be had on this machine, or is out of range.
    """
    from dpdoctor.cli import _plan  # here: `analyze` launches nothing

    script, args = options["script"], options["args"]
    if options["module"] is not None and script is not None:
        script, args = None, (script, *args)
    above_zero("--timeout", options["timeout"])
    if options["launcher"] is not None and NATIVE not in options["modes"] and is_final:
        raise UsageError(f"--launcher is for mode {NATIVE}: dpdoctor itself starts the ranks of other modes")
    return _plan.make_spec(
        _plan.Options(
            script=script,
            module=options["module"],
            args=args,
            baseline=baseline,
            repeat=repeat,
            control=control,
            fsdp_wrap=_class_names(options["fsdp_wrap"]),
            recording=wanted,
            directory=directory,
            go_on=go_on,
            **{name: options[name] for name in _AS_THEY_ARE},
        )
    )


def is_given(name: str) -> bool:
    """Return whether the person gave an option: what is only a default may turn out otherwise."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) == ParameterSource.COMMANDLINE


def tolerance_of(options: dict[str, Any]) -> float:
    """Return --tolerance as a ratio.

    Raises:
        UsageError: it is not above 0.
    """
    return above_zero("--tolerance", options["tolerance"]) / 100


def above_zero(name: str, value: float) -> float:
    """Return the value of an option that must be above 0 and finite.

    Raises:
        UsageError: it is not.
    """
    if not 0 < value < math.inf:
        raise UsageError(f"{name} is {value:g}; it must be above 0 and finite")
    return value


def _class_names(text: str) -> tuple[str, ...] | None:
    """Return the class names of --fsdp-wrap; None for `auto`."""
    return None if text == "auto" else tuple(name.strip() for name in text.split(",") if name.strip())
