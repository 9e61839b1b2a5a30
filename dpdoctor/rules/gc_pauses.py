"""gc_pauses: Python's garbage collector holds up the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import EventRecord, Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS
from dpdoctor.analysis.interruptions import NEARLY_ALL, CollectCall, collect_call, garbage_collections, slowest_by_step
from dpdoctor.analysis.weighing import Weighed, above_zero
from dpdoctor.rules.rule import Rule, faster_without, severity

# xprof's thresholds for "other" time of the host.
WARNING, CRITICAL = 0.03, 0.15


def _check(facts: ModeFacts) -> Finding | None:
    share = facts.share_of_events("gc")
    if share.value is None or share.value < WARNING:
        return None
    with_s, without_s, pauses_s = _steps(facts)
    weighed = _weighed(facts, share, with_s, without_s, pauses_s)
    is_refuted = weighed.status == "refuted"
    if weighed.value < WARNING and not is_refuted:
        return None
    collected = garbage_collections(facts.windows)
    caller = collect_call(collected)
    is_in_each = len(with_s) >= NEARLY_ALL * (len(with_s) + len(without_s))
    is_called = caller is not None or (is_in_each and _are_full(collected))
    advice = _of_calls(caller, is_in_each=is_in_each) if is_called else _OF_THE_COLLECTOR
    steps = f"{units.whole(len(with_s))} of {units.count(len(with_s) + len(without_s), 'measured step')}"
    evidence = [f"A collection in {steps}, {units.seconds(fmean(pauses_s))} each on the slowest rank."]
    if without_s:
        longer = fmean(with_s) - fmean(without_s)
        by = f"last {units.seconds(longer)} longer than" if longer > 0 else "are not longer than"
        evidence.append(f"Steps with one {by} the others.")
    return Finding(
        rule="gc_pauses",
        mode=facts.name,
        severity="info" if is_refuted else severity(weighed.value, critical=CRITICAL),
        status=weighed.status,
        title=f"garbage collection takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=advice.cause,
        remedy=None if is_refuted else advice.remedy,
        short_remedy=None if is_refuted else advice.short,
        code=None if is_refuted else advice.code,
        line=caller.line if caller else None,
        speedup=None if is_refuted else faster_without(weighed.cost),
        speedup_basis="predicted" if weighed.status == "confirmed" else "at most",
    )


class _Advice(NamedTuple):
    cause: str | None
    remedy: str
    short: str
    code: str | None = None


_OF_THE_COLLECTOR = _Advice(
    cause=None,
    remedy="keep the collector from running inside of training: gc.freeze() and gc.disable() before the loop, and "
    "gc.collect(1) every few hundred steps, on all ranks in the same step",
    short="freeze and disable the garbage collector",
    code="gc.freeze(); gc.disable()  # after the model is built",
)


def _of_calls(caller: CollectCall | None, *, is_in_each: bool) -> _Advice:
    """Return what to do about calls of gc.collect(); None: it is not known whose."""
    often = " in nearly every step" if is_in_each else ""
    out = "take gc.collect() out of the training loop"
    return _Advice(
        cause=f"{caller.words if caller else 'gc.collect() is called'}{often}",
        remedy=out if is_in_each else f"{out}, or call it less often: Python collects by itself",
        short=out,
    )


def _steps(facts: ModeFacts) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of the steady steps with a collection, of those without, and of the collections."""
    with_s: list[float] = []
    without_s: list[float] = []
    pauses_s: list[float] = []
    for launch, window in facts.windows:
        taken = slowest_by_step(launch, "gc")
        for step in window.ranks[0].steady:
            (with_s if step.step in taken else without_s).append(step.duration_ns * NS)
        pauses_s += [taken[step.step] for step in window.ranks[0].steady if step.step in taken]
    return with_s, without_s, pauses_s


def _weighed(
    facts: ModeFacts, share: Figure, with_s: list[float], without_s: list[float], pauses_s: list[float]
) -> Weighed:
    """Return what collections cost, given the share of a step that they take.

    Of one process on the CPU nothing runs beside a collection. A device has work queued meanwhile, and of several
    ranks one that collects may have had to wait for the others anyway: it costs no more than steps with one are longer.
    """
    if not facts.on_gpu and facts.mode.world_size == 1:
        return Weighed(cost=share, status="confirmed")
    if not without_s:
        return Weighed(cost=share, status="inferred")
    longer = stats.combination([(1, stats.mean_interval(with_s, "s")), (-1, stats.mean_interval(without_s, "s"))], "s")
    pause_s = fmean(pauses_s)
    if not above_zero(longer):
        far_below = longer.high is not None and longer.high < pause_s
        return Weighed(cost=share, status="refuted" if far_below else "inferred")
    lost = replace(stats.scaled(longer, len(with_s) / (sum(with_s) + sum(without_s))), unit="ratio")
    cost = min(share, lost, key=lambda found: found.value or 0.0)
    return Weighed(cost=cost, status="inferred" if facts.on_gpu and _is_ahead(facts, pause_s) else "confirmed")


def _is_ahead(facts: ModeFacts, pause_s: float) -> bool:
    """Return whether at the ends of windows a device has work for longer than a collection takes: it need not wait."""
    ahead_s = [
        rank.wall_s - sum(step.duration_ns for step in rank.counted) * NS
        for _, window in facts.windows
        for rank in window.ranks
    ]
    return fmean(ahead_s) > pause_s


def _are_full(events: Sequence[EventRecord]) -> bool:
    """Return whether nearly all of the time went into collections of all generations; others come by themselves."""
    full_ns = sum(event.duration_ns for event in events if event.detail.startswith("generation 2"))
    return full_ns >= NEARLY_ALL * sum(event.duration_ns for event in events)


RULE = Rule(
    name="gc_pauses",
    title="Garbage collection holds up training",
    what="Python's garbage collector runs inside of the training loop, and takes long.",
    why="Nothing else runs in a process while it collects; with several ranks, all wait for the one that does.",
    how="The interpreter tells of the begin and end of each collection, and what calls gc.collect() is seen; those of "
    "the measured windows are added up, in each step on the slowest rank. On GPUs, and of several ranks, steps with a "
    "collection must also last longer than those without, or the finding is refuted: the device had enough to do "
    "meanwhile, or the others were later yet. It then costs no more than they are longer; of a host that is far ahead "
    "of its GPU that is a bound.",
    remedy="Take gc.collect() out of the loop; or freeze what was built before it, turn the automatic collector off "
    "and collect every few hundred steps, on all ranks in the same step.",
    verified=True,
    check=_check,
)
