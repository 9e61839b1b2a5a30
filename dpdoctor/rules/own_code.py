"""own_code: code of the loop, outside of loading, forward, backward and update, keeps the devices waiting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, LineShare, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.breakdown import OWN_CODE, share, step_s
from dpdoctor.analysis.weighing import SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import why_no_steps

# What other rules tell of.
KINDS = ("gc", "checkpoint", "evaluation", "inference", "compile")
# A line with less of it is not worth naming.
LEAST_LINE = 0.10
MOSTLY = 0.5


class _Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of the line that has most of the cost: what it may be, and what to do that breaks no training.

    `removes`: whether following it may take all of the cost away.
    """

    words: str
    remedy: str
    removes: bool = True


BETWEEN_STEPS = _Advice(
    words="",
    remedy="metrics, logging, images, uploads: do them every few hundred steps only, or in a thread of their own. "
    "What training needs in every step, such as an average of the weights: make it cheaper",
)
PREPARING = _Advice(
    words=", between a batch that the loader gave and the forward pass",
    remedy="what makes a batch ready for the model: let the loader's workers do it, in the data set or in collate_fn. "
    "What needs the model or another one: make it cheaper",
)
WITHOUT_LOADER = _Advice(
    words="; no loader feeds the training, so what makes its batches is a part of this",
    remedy="what makes the batches: let a DataLoader with workers make them beside the training. What an environment "
    "or training needs in every step: make it cheaper. What only reports: do it every few hundred steps",
    removes=False,
)
UNSEEN = replace(BETWEEN_STEPS, removes=False)
OF_A_LIBRARY = _Advice(
    words="",
    remedy="callbacks, progress bars and loggers that only report can be called less often",
    removes=False,
)


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    conversion, clock = facts.mode.conversion, _by_clock(facts)
    if conversion is not None and conversion.made_anew:
        return CannotTell(reason=conversion.made_anew)
    if clock.value is None or clock.value < SMALL:
        return None
    found = facts.traces
    why = _why_not(facts, found)
    if why is not None:
        return CannotTell(reason=f"code of the loop runs in {units.share(clock.value)} of each step; {why}")
    traced = _by_trace(facts, found)
    seen = _seen(facts)
    cost = stats.scaled(min(clock, traced, key=lambda figure: figure.value or 0.0), 1 - _training(seen))
    if cost.value is None or cost.value < SMALL:
        return None
    lines = [line for line in seen if line.share >= LEAST_LINE and line.training < MOSTLY]
    first = lines[0] if lines else None
    advice = _advice(facts, first)
    is_loops = first is not None and not first.library
    return Finding(
        rule="own_code",
        mode=facts.name,
        # Of a few looks no line is known, and so nothing to do.
        severity=severity(cost.value) if first else "info",
        status="inferred",
        title=f"code of the loop between the steps holds training up: {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(
            f"Neither loading, forward, backward nor update runs in {units.share(clock.value)} of a step.",
            f"In the trace nothing computes during this code for {units.share(traced.value or 0.0)} of a step.",
            *(f"{_name(line)} has {units.share(line.share)} of it." for line in lines),
        ),
        cause=f"{_name(first)} has {units.share(first.share)} of it{advice.words}" if first else None,
        remedy=advice.remedy,
        short_remedy=f"look at what {PurePath(first.line).name} does between the steps"
        if first and advice.removes
        else None,
        line=first.line if first is not None and is_loops else None,
        speedup=faster_without(cost) if advice.removes else None,
        speedup_basis="at most",
    )


def _why_not(facts: ModeFacts, found: Traces) -> str | None:
    """Return why nothing can be said of the time outside of all phases; None: it can."""
    if not found.common.steps:
        return why_no_steps(facts, "whether it computes meanwhile")
    conversion = facts.mode.conversion
    if conversion is not None and conversion.modules and not conversion.optimizers:
        return "without an optimizer of torch's the update is a part of it that is not known"
    forward = facts.mode.phases.get("forward")
    if facts.mode.native is None and forward is not None and forward.value == 0:
        return "no forward of the model was seen, which is a part of it"
    return None


def _advice(facts: ModeFacts, first: LineShare | None) -> _Advice:
    if first is None and _is_fed(facts):
        return UNSEEN
    if first is not None and first.library:
        return OF_A_LIBRARY
    if not _is_fed(facts):
        return WITHOUT_LOADER
    return PREPARING if first is not None and first.preparing > MOSTLY else BETWEEN_STEPS


def _is_fed(facts: ModeFacts) -> bool:
    """Return whether batches of a loader enter the training."""
    steps = (step for _, window in facts.windows for rank in window.ranks for step in rank.counted)
    return facts.mode.loader is not None or any(step.samples_drawn for step in steps)


def _name(line: LineShare) -> str:
    return line.library or line.line


def _by_clock(facts: ModeFacts) -> Figure:
    """Return the share of the untraced step outside of all phases, without what other rules tell of."""
    other = facts.mode.phases.get("other")
    if other is None:
        return stats.unknown("ratio", "no phase was timed")
    told = [(-1.0, facts.share_of_events(kind)) for kind in KINDS]
    return stats.combination([(1.0, facts.share_of_step(other)), *told], "ratio")


def _by_trace(facts: ModeFacts, found: Traces) -> Figure:
    """Return the time in which nothing computes because of the loop's own code, as a share of the untraced step.

    Where only some ranks have it, the others wait for them, and the straggler's rule tells of it. The profiler makes a
    step longer, but not what waits in it.
    """
    least = share(
        found.common, lambda steps: min(sum(step.idle_by.get(cause, 0) for cause in OWN_CODE) for step in steps)
    )
    assert facts.mode.step.value is not None
    return stats.scaled(least, step_s(found) / facts.mode.step.value)


def _seen(facts: ModeFacts) -> tuple[LineShare, ...]:
    """Return where the first rank that was looked at was seen most, of the launch that is shown."""
    launch = facts.launch
    records = [rank.record for rank in launch.ranks if rank.record] if launch else []
    return next((record.own_code for record in records if record.own_code), ())


def _training(seen: Sequence[LineShare]) -> float:
    """Return which part of these looks found the script between a forward pass and the update."""
    every = sum(line.share for line in seen)
    return sum(line.share * line.training for line in seen) / every if every else 0.0


RULE = Rule(
    name="own_code",
    title="Code of the loop",
    what="After the update and before the next forward pass the loop does something, such as making its batches, "
    "computing metrics on the CPU, writing logs or images, or waiting for something else.",
    why="The training thread is busy with it and gives the device nothing to do; without a GPU it also takes the core.",
    how="The host's clock says how much of a step lies outside of loading, forward, backward and update, without "
    "evaluations, checkpoints and collections, which have rules of their own; the trace, in which of that time nothing "
    "computes. The smaller one counts, without what lies between the first forward pass of a step and its update: "
    "losses and clipping are training. The stack of the traced steps, looked at every millisecond, gives the line; "
    "where a library runs the loop, its callback or function.",
    remedy="What only reports: do it every few hundred steps, or in another thread or process. What makes batches: let "
    "the loader's workers do it. What training needs in every step: make it cheaper.",
    verified=True,
    check=_check,
)
