"""straggler: the ranks wait for one of them, or for one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE, Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.traces import NO_TRACE
from dpdoctor.analysis.cross_rank import CrossRank, StepLateness, Stragglers
from dpdoctor.analysis.facts import NO_COMM
from dpdoctor.analysis.interruptions import collect_call, garbage_collections
from dpdoctor.analysis.rank_imbalance import CORE, GC, QUEUE, SlowRank
from dpdoctor.analysis.weighing import COVERAGE, SMALL, Weighed, agree, main_part, weigh, weigh_against
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import how_to_ablation, how_to_either

# TraceML 0.5 warns of a straggler at 10% of the step; below, from SMALL on, it is told without alarm.
CRITICAL = 0.10
NS = 1e-9
DATA_WAIT, WORKERS = "data_wait", "workers"
# Where the traced steps are slower than this, who is late in them says little of the others.
MOST_SLOWER = 2.0
DISTURBED = "a traced step takes {} the time of one that is not, and only the trace shows a rank that is late"
# What a rank did in the time by which it is late: host phases and garbage collection (ablation), causes of a trace.
CAUSES = {
    "data_wait": "it waits longer for its loader",
    "data": "it waits longer for its loader",
    "workers": "its loader processes are slower than those of other ranks, and take the core that it computes on",
    "h2d": "its copies to the device take longer",
    "copy": "its copies take longer",
    "forward": "its forward takes longer",
    "backward": "its backward takes longer",
    "compute": "its computing takes longer",
    "optimizer": "its optimizer takes longer",
    "other": "code of the script beside forward, backward and update takes longer on it",
    "script": "code of the script beside forward, backward and update takes longer on it",
    "python": "Python code between operators takes longer on it",
    "gc": "Python's garbage collector stops it",
    "queue": "it waits for a core: threads and loader processes of the ranks are more than the cores",
    "core": "its core computes more slowly than those of other ranks",
    "checkpoint": "it writes checkpoints",
    "evaluation": "it evaluates",
    "inference": "its forward passes that no backward() follows take longer",
    "compile": "it compiles",
    "sync": "it waits for its device in the host's code",
    "allocator": "allocating memory takes longer on it",
    "dispatch": "launching operators takes longer on it",
    "annotation": "a span that the script named takes longer on it",
}
REMEDIES = {
    "data_wait": "give this rank's loader what other ranks' have: cores, storage, samples of the same cost",
    "forward": "give each rank the same work: batches of equal size and length, and cores of its own",
    "workers": "give this rank's loader what other ranks' have: cores, storage, samples of the same cost",
    "other": "find what the script does on this rank only, such as logging, evaluating or saving, and move it off the "
    "loop or share it out",
    "queue": "leave each rank a core: fewer loader processes, fewer threads",
    "core": "look for what shares this core's hardware thread or lowers its clock, and pin the ranks to cores that are "
    "alike; only loader processes and threads of the ranks themselves could make it the script's doing",
    "gc": "collect garbage on all ranks in the same step: gc.disable(), and gc.collect(1) every few hundred steps",
}
# What makes now one rank late, now another, by the phase of the host that is not the same in every step.
TURN_CAUSES = {
    "data_wait": "now one rank, now another waits longer for its loader",
    "forward": "forward takes longer now on one rank, now on another",
    "backward": "backward takes longer now on one rank, now on another",
    "optimizer": "the optimizer takes longer now on one rank, now on another",
    "other": "code of the script beside forward, backward and update takes longer now on one rank, now on another",
}
EVEN_OUT = "even out what differs by step: sizes of samples, layers that run, garbage collection, load on the cores"
TURN_REMEDIES = {
    "data_wait": "even out what fetching a batch takes, or have loader processes fetch further ahead (prefetch_factor)",
    "other": "find what the script does in some steps only, such as logging, and do it on all ranks in the same ones",
}
OF_LOADER = "it is part of what the loader costs, and what helps the loader helps here"
OF_TURNS = "{} of that lies in `{}`, which takes longer in some steps than in others"
COLLECT_TOGETHER = "call gc.collect() on all ranks in the same step, or not at all: {}"
# How much of a rank's slowness lies in something, by what that is; else in a phase of its host.
_PART_WORDS = {
    CORE: "its core is slower at one and the same arithmetic, too, by {known} of a step",
    QUEUE: "it waits for a core for {known} of a step longer",
}
OF_PHASE = "what its host does in `{name}`{how} takes {known} of a step longer"
ONLY_HERE = "look for what only this rank does, and at its share of the data"
# For a rank that is late and nothing says why: cores of one host differ from run to run, hosts and devices do not.
ON_A_HOST = f"repeat the run: if another rank is late then, or none, it was this rank's core; else {ONLY_HERE}"
ELSEWHERE = (
    "compare this rank's host and device with other ranks': a GPU whose clocks throttling lowers, load on its cores, "
    "its share of the data"
)
OTHERS_REMEDY = "repeat the run while nothing else uses the machine: the script is not the reason"
ALIKE = {
    "data": "data_wait",
    "backward": "forward",
    "compute": "forward",
    "python": "other",
    "script": "other",
    "annotation": "other",
    "checkpoint": "other",
    "evaluation": "other",
    "inference": "other",
}


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    if not facts.communicates:
        return None
    cross_rank, own = facts.cross_rank, facts.slowest_rank
    verdict = cross_rank.verdict if cross_rank is not None else Stragglers(kind="unknown", reason=NO_TRACE)
    if own is not None and (own.proved.value or 0.0) >= SMALL:
        return _of_pace(facts, own, verdict)
    if cross_rank is not None and verdict.kind in ("persistent", "periodic", "rotating"):
        return _of_trace(facts, verdict, _claim(cross_rank.steps, cross_rank.ranks, verdict), own)
    if verdict.kind == "unknown" and not _is_even(own):
        how = how_to_either(facts)
        return CannotTell(reason=facts.traces.why_unknown or f"{_last_words(cross_rank)}{verdict.reason}; {how}")
    return None


def _is_even(own: SlowRank | None) -> bool:
    """Return whether the ablation shows that no rank is slow by itself, to within what would be told."""
    return own is not None and own.excess.high is not None and own.excess.high < SMALL


def _of_pace(facts: ModeFacts, own: SlowRank, verdict: Stragglers) -> Finding | None:
    """Return the finding of the ablation, which has windows where a trace has steps, and no profiler; the trace may
    add.
    """
    weighed = Weighed(cost=own.proved, status="confirmed")
    by_ablation = Stragglers(kind="persistent", rank=own.rank)
    return _finding(facts, weighed, verdict if verdict.rank == own.rank else by_ablation, own, _pace_words(own))


def _of_trace(
    facts: ModeFacts, verdict: Stragglers, claim: Figure, own: SlowRank | None
) -> Finding | CannotTell | None:
    if verdict.rank is not None:
        weighed, evidence = _against_pace(verdict, claim, own), _pace_words(own)
    else:
        weighed, evidence = _against_turns(facts, claim), _turn_words(facts)
    if weighed.status == "refuted" or weighed.value < SMALL:
        return None
    slower = facts.mode.profiler_overhead.value
    if not evidence and slower is not None and slower > MOST_SLOWER:
        return CannotTell(reason=f"{DISTURBED.format(units.times(slower))}; {how_to_ablation(facts)}")
    return _finding(facts, weighed, verdict, own, evidence)


def _against_turns(facts: ModeFacts, claim: Figure) -> Weighed:
    """Return whether ranks that are late in turns in the trace are so without communication and profiler, too."""
    if facts.jitter_wait.value is not None:
        return weigh_against(claim, facts.jitter_wait)
    weighed = weigh(claim, facts.ablation(NO_COMM))
    if weighed.status != "confirmed":
        return weighed
    # The ablation removes all communication: it shows that there is something to gain, not how much of it is waiting.
    return Weighed(cost=min(claim, weighed.cost, key=lambda figure: figure.value or 0.0), status="inferred")


def _against_pace(verdict: Stragglers, claim: Figure, own: SlowRank | None) -> Weighed:
    """Return whether the rank that is late in the trace may be slow without communication, too, if not clearly."""
    if own is None:
        return Weighed(cost=claim, status="inferred")
    excess = own.excess if own.rank == verdict.rank else stats.mean_interval([0.0], "ratio")
    return Weighed(cost=claim, status="inferred" if agree(claim, excess) else "refuted")


def _claim(steps: StepLateness, ranks: tuple[int, ...], verdict: Stragglers) -> Figure:
    """Return the share of a traced step by which the culprit, or whoever is last, is late; 0 in steps on time."""
    assert steps.step_ns is not None
    late = steps.lateness_ns
    of_step = late.max(axis=1) if verdict.rank is None else late[:, ranks.index(verdict.rank)]
    counted = np.where(of_step >= SMALL * steps.step_ns, of_step, 0)
    # The median step is one on time where late ones are few: the mean step is what a share is taken of.
    step_ns = steps.step_ns + counted.mean() - np.median(counted)
    return stats.mean_interval((counted / step_ns).tolist(), "ratio")


def _finding(
    facts: ModeFacts, weighed: Weighed, verdict: Stragglers, own: SlowRank | None, by_ablation: list[str]
) -> Finding | None:
    """Return the finding; None: the rank is late because its batches are larger, which uneven_batches says."""
    if facts.uneven_batches is not None and facts.uneven_batches.explains(weighed.value):
        return None
    weighed = replace(weighed, cost=_within_scaling(facts, weighed.cost))
    cause, taken = _cause(facts, verdict, own), None
    if own is not None and own.rank == verdict.rank and own.cause is None and facts.others and own.cause_running:
        # Others let it wait for its core, and that is theirs: what is left is the script's, if that is worth a word.
        left = replace(weighed, cost=own.excess_running)
        cause, weighed = (own.cause_running, left) if left.value >= SMALL else (QUEUE, weighed)
        by_ablation = [*by_ablation, *_words_of(cause, own.running.get(cause), ", without the waiting,")]
    if cause in {QUEUE, CORE} or _is_waiting_for_cores(facts, verdict, cause, weighed):
        taken = None if verdict.rank is not None and facts.starts_more_than_others(verdict.rank) else facts.others
    remedy = _remedy(facts, verdict, cause)
    # What nothing explains may be chance of this run: it alarms where the least that it costs does.
    alarming = (weighed.cost.low or 0.0) if cause is None else weighed.value
    who, causes = ("one after the other", TURN_CAUSES) if verdict.rank is None else (f"rank {verdict.rank}", CAUSES)
    often = f" every {units.count(verdict.period, 'step')}" if verdict.period else ""
    return Finding(
        rule="straggler",
        mode=facts.name,
        # What others take of the machine is a fact of this run: what helps the script comes first.
        severity="info" if taken else severity(alarming, critical=CRITICAL),
        status=weighed.status,
        title=f"the ranks wait for {who}{often}: {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        ranks=() if verdict.rank is None else (verdict.rank,),
        evidence=(*_trace_words(verdict), *by_ablation),
        cause=f"{taken}, for which the ranks waited" if taken else causes.get(cause) if cause else None,
        remedy=OTHERS_REMEDY if taken else remedy,
        short_remedy=None if taken else _short(remedy, verdict.rank),
        speedup=None if taken else faster_without(weighed.cost),
        speedup_basis="at most",
    )


def _beside(facts: ModeFacts, parts: Sequence[Finding]) -> Finding | CannotTell | None:
    """Return the finding as a mere fact where ranks wait for their loaders in turns, and a finding tells of those."""
    found, is_told = _check(facts), any(part.severity != "info" for part in parts)
    if not isinstance(found, Finding) or found.severity == "info" or found.ranks:
        return found
    if not is_told or _phase_of_turns(facts) != DATA_WAIT:
        return found
    return replace(found, severity="info", remedy=None, short_remedy=None, speedup=None, no_remedy=OF_LOADER)


def _within_scaling(facts: ModeFacts, cost: Figure) -> Figure:
    """Return a cost whose interval ends where scaling is linear: without waiting a rank is as one device alone."""
    scaling = facts.mode.scaling_efficiency
    efficiency = scaling.value if scaling.low is None else scaling.low
    if cost.value is None or cost.high is None or efficiency is None:
        return cost
    return replace(cost, high=min(cost.high, max(cost.value, 1 - efficiency)))


def _is_waiting_for_cores(facts: ModeFacts, verdict: Stragglers, cause: str | None, weighed: Weighed) -> bool:
    """Return whether what nothing else explains is as much as all ranks wait for cores.

    Of ranks in turns it may be as little as their interval allows: traced steps are few, and other ones than those in
    which the waiting was seen.
    """
    if verdict.rank is not None and cause is not None:
        return False
    least = weighed.cost.low if verdict.rank is None else None
    return facts.waiting_for_cores >= COVERAGE * max(SMALL, weighed.value if least is None else least)


def _trace_words(verdict: Stragglers) -> list[str]:
    if verdict.lateness_ns is None:
        return []
    steps = f"{units.whole(verdict.times)} of {units.count(verdict.num_steps, 'traced step')}"
    pattern = "one rank" if verdict.rank is not None else "now one rank, now another"
    return [f"in {steps} {pattern} comes late to a collective by {units.seconds(verdict.lateness_ns * NS)}"]


def _last_words(cross_rank: CrossRank | None) -> str:
    """Return what is no pattern yet: who came last to most collectives."""
    last = cross_rank.came_last if cross_rank is not None else None
    if last is None:
        return ""
    often = f"{units.whole(last.times)} of {units.count(last.of, 'collective')}"
    return f"rank {last.rank} came last to {often}, which waited {units.seconds(last.waited_ns * NS)} for it; "


def _turn_words(facts: ModeFacts) -> list[str]:
    share, phase = facts.jitter_wait.value, _phase_of_turns(facts)
    if share is None:
        return []
    cost = f"without communication (ablation no_comm) meeting in every step would cost {units.share(share)}"
    return [cost] if phase is None else [cost, OF_TURNS.format(units.share(facts.jitter_phases[phase]), phase)]


def _phase_of_turns(facts: ModeFacts) -> str | None:
    """Return the phase of the host that makes now one rank late, now another; None: no single one."""
    return main_part(facts.jitter_phases, 1.0)


def _pace_words(own: SlowRank | None) -> list[str]:
    if own is None or own.excess_s <= 0:
        return []
    slower = f"a step of rank {own.rank} takes {units.seconds(own.excess_s)} longer than elsewhere"
    return [f"without communication (ablation no_comm), where no rank waits, {slower}", *_part_words(own)]


def _part_words(own: SlowRank) -> list[str]:
    """Return how much of a rank's slowness lies in what explains it."""
    names = dict.fromkeys((*filter(None, [own.cause]), *([QUEUE] if own.waits else [])))
    return [text for name in names for text in _words_of(name, own.parts[name])]


def _words_of(name: str, part: Figure | None, how: str = "") -> list[str]:
    """Return by how much a part of a step is longer on the rank; nothing where that has no interval."""
    if part is None or part.value is None or part.low is None or part.high is None:
        return []
    known = units.within(*map(units.share, (part.value, part.low, part.high)))
    return [_PART_WORDS.get(name, OF_PHASE).format(name=name, known=known, how=how)]


def _cause(facts: ModeFacts, verdict: Stragglers, own: SlowRank | None) -> str | None:
    """Return what explains the lateness: by the ablation's phases where they show it, else by the trace."""
    if verdict.rank is None:
        return _phase_of_turns(facts)
    if own is not None and own.rank == verdict.rank:
        if own.cause:
            return own.cause
        # Its loader processes keep it waiting in one phase, and take its core in the others.
        waits = (own.running.get(DATA_WAIT), own.parts.get(QUEUE))
        by_workers = sum(part.value or 0.0 for part in waits if part is not None)
        if facts.starts_more_than_others(own.rank) and by_workers >= COVERAGE * (own.proved.value or 0.0) > 0:
            return WORKERS
    return verdict.cause


def _remedy(facts: ModeFacts, verdict: Stragglers, cause: str | None) -> str:
    if cause == GC and (caller := collect_call(garbage_collections(facts.windows))):
        return COLLECT_TOGETHER.format(caller.words)
    if verdict.rank is None:
        return TURN_REMEDIES.get(cause or "", EVEN_OUT)
    if cause is not None and (known := REMEDIES.get(ALIKE.get(cause, cause))):
        return known
    is_elsewhere = facts.name == TRACE_MODE or facts.on_gpu
    return ELSEWHERE if is_elsewhere else ON_A_HOST if cause is None else ONLY_HERE


def _short(remedy: str, rank: int | None) -> str | None:
    """Return what a remedy begins with, about a rank by its number; None: it changes nothing yet."""
    if remedy == ON_A_HOST:
        return None  # to look again gives nothing
    first = remedy.partition(":")[0].partition(",")[0]
    return first if rank is None else first.replace("this rank", f"rank {rank}")


RULE = Rule(
    name="straggler",
    title="Straggler",
    what="One rank comes to the collectives later than the others, in most steps or every so often, or the ranks take "
    "turns.",
    why="A step lasts as long as its slowest rank: all others wait for it.",
    how="From the traces, who comes last to each collective and by how much (durations only, no clocks compared), with "
    "a binomial test against chance; from the ablation no_comm, how long each step of each rank takes where none "
    "waits. The cost's interval ends where scaling would be linear. The cause is what at least 80% of the difference "
    "lies in; where other processes took the rank's core, of what is left without waiting for it. Where the ranks take "
    "turns, it is the phase that at least 80% of the cost would go with if it took the same time in every step.",
    remedy="Equal work, cores and data for each rank; what only one rank does, such as logging, off the training loop.",
    verified=True,
    check=_check,
    parts=("data_starved",),
    beside=_beside,
)
