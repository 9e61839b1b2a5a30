"""own_code: code of the loop, outside of loading, forward, backward and update, keeps the devices waiting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, LineShare, stats
from dpdoctor.digest import Digest
from dpdoctor.rules._base import SMALL, CannotTell, Case, Rule, faster_without, severity, share_of_step
from dpdoctor.rules._steps import share_of_events
from dpdoctor.rules._traced import NO_STEPS, digests, launch_of, share, step_s, whole_steps

# Of idle time: in the loop's own code, or in a span that the script named there.
CAUSES = ("script", "annotation")
# What other rules tell of.
KINDS = ("gc", "checkpoint", "evaluation", "inference", "compile")
# A line with less of it is not worth naming.
LEAST_LINE = 0.10
MOSTLY = 0.5


def _check(case: Case) -> Finding | CannotTell | None:
    clock = _by_clock(case)
    if clock.value is None or clock.value < SMALL:
        return None
    found = digests(case)
    if not whole_steps(found):
        why = NO_STEPS if found else "without a trace nothing shows whether it computes meanwhile"
        return CannotTell(reason=f"code of the loop runs in {units.share(clock.value)} of each step; {why}")
    traced = _by_trace(case, found)
    seen = _seen(case)
    cost = stats.scaled(min(clock, traced, key=lambda figure: figure.value or 0.0), 1 - _training(seen))
    if cost.value is None or cost.value < SMALL:
        return None
    lines = [line for line in seen if line.share >= LEAST_LINE and line.training < MOSTLY]
    return Finding(
        rule="own_code",
        mode=case.name,
        severity=severity(cost.value),
        status="inferred",
        title=f"code of the loop between the steps holds training up: {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(
            f"Neither loading, forward, backward nor update runs in {units.share(clock.value)} of a step.",
            f"By the trace nothing computes because of that for {units.share(traced.value or 0.0)} of a step.",
            *(f"{line.line} has {units.share(line.share)} of it." for line in lines),
        ),
        cause=f"{lines[0].line} has {units.share(lines[0].share)} of it" if lines else None,
        remedy="metrics, logging, images, uploads: do them every few hundred steps only, or in a thread of their own. "
        "What training needs in every step, such as an average of the weights: make it cheaper",
        short=f"look at what {PurePath(lines[0].line).name} does in every step"
        if lines
        else "do less between the steps",
        line=lines[0].line if lines else None,
        predicted=faster_without(cost),
    )


def _by_clock(case: Case) -> Figure:
    """Return the share of the untraced step outside of all phases, without what other rules tell of."""
    other = case.mode.phases.get("other")
    if other is None:
        return stats.unknown("ratio", "no phase was timed")
    told = [(-1.0, share_of_events(case, kind)) for kind in KINDS]
    return stats.combination([(1.0, share_of_step(case, other)), *told], "ratio")


def _by_trace(case: Case, found: Sequence[Digest]) -> Figure:
    """Return the time in which nothing computes because of the loop's own code, as a share of the untraced step.

    Where only some ranks have it, the others wait for them, and the straggler's rule tells of it. The profiler makes a
    step longer, but not what waits in it.
    """
    least = share(found, lambda steps: min(sum(step.idle_by.get(cause, 0) for cause in CAUSES) for step in steps))
    assert case.mode.step.value is not None
    return stats.scaled(least, step_s(found) / case.mode.step.value)


def _seen(case: Case) -> tuple[LineShare, ...]:
    """Return where the first rank that was looked at was seen most, of the launch that is shown."""
    launch = launch_of(case)
    records = [rank.record for rank in launch.ranks if rank.record] if launch else []
    return next((record.own_code for record in records if record.own_code), ())


def _training(seen: Sequence[LineShare]) -> float:
    """Return which part of these looks found the script between a forward pass and the update."""
    every = sum(line.share for line in seen)
    return sum(line.share * line.training for line in seen) / every if every else 0.0


RULE = Rule(
    title="The loop's own code",
    what="After the update and before the next forward pass the loop does something, such as computing metrics on the "
    "CPU, writing logs or images, or waiting for something else.",
    why="The training thread is busy with it and gives the device nothing to do; without a GPU it also takes the core.",
    how="The host's clock says how much of a step lies outside of loading, forward, backward and update, without "
    "evaluations, checkpoints and collections, which have rules of their own; the trace, in which of that time nothing "
    "computes. The smaller one counts, without what lies between the first forward pass of a step and its update: "
    "losses and clipping are training. The stack of the traced steps, looked at every millisecond, gives the line.",
    remedy="Do it every few hundred steps, move it to another thread or process, or let the device do it.",
    verified=True,
    check=_check,
)
