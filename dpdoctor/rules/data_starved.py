"""data_starved: training waits for its loader."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, LoaderSummary, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.interruptions import Restarts
from dpdoctor.analysis.weighing import COVERAGE, SMALL, TOLERANCE, Weighed, above_zero, agree, more_exact, weigh
from dpdoctor.rules import loader_advice
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    claim = _claim(facts)
    if claim.value is None and facts.ablation(loader_advice.ABLATION) is None:
        return CannotTell(reason=claim.reason or "the wait for data is unknown")
    weighed, begun = _weighed(facts, claim), facts.loader_restarts
    # Where edges are steady, what a step waits holds the beginnings, too.
    least = weighed.value * (COVERAGE if facts.mode.edges_are_steady else 1)
    if begun is not None and (begun.share.value or 0.0) >= max(SMALL, least):
        return _at_edges(facts, begun)
    if weighed.status == "refuted":
        return _refuted(facts, claim, weighed) if (claim.value or 0.0) >= SMALL else None
    return _starved(facts, claim, weighed) if weighed.value >= SMALL else None


def _claim(facts: ModeFacts) -> Figure:
    """Return the share of a step that waits for data: a GPU's own idle time, as it may compute while its host waits."""
    if facts.on_gpu or facts.mode.step.value is None:
        traced = facts.lost_to("data")
        if traced.value is not None:
            return traced
    # Window by window, where that was compared with the ablation: the pace of the machine falls out.
    seen = next((check.observed for check in facts.mode.cross_checks if check.ablation == loader_advice.ABLATION), None)
    return seen if seen is not None and seen.value is not None else facts.share_of_step(facts.mode.phases["data_wait"])


def _weighed(facts: ModeFacts, claim: Figure) -> Weighed:
    """Return what the wait costs: no more than it takes, where nothing of the loader runs beside training."""
    weighed = more_exact(weigh(claim, facts.ablation(loader_advice.ABLATION)), claim)
    if _is_waited_for(facts) and _gains_more(weighed.cost, claim):
        return replace(weighed, cost=claim)
    return weighed


def _is_waited_for(facts: ModeFacts) -> bool:
    """Return whether the training thread waits for all that the loader does: no other process or thread of it runs."""
    loader = facts.mode.loader
    if loader is None or loader.num_workers or facts.on_gpu:
        return False
    fetch, wait = loader.fetch.value, loader.wait.value
    return fetch is not None and wait is not None and fetch <= wait


def _gains_more(gained: Figure, claim: Figure) -> bool:
    """Return whether without the loader a step takes less than without the wait, too."""
    if gained.value is None or claim.value is None:
        return False
    return gained.value > claim.value and not agree(gained, claim)


def _starved(facts: ModeFacts, claim: Figure, weighed: Weighed) -> Finding:
    loader = facts.mode.loader
    advice = loader_advice.advice(facts, loader) if loader else None
    cause = loader_advice.cause(facts, loader) if loader else None
    line = _line(facts)
    if loader and facts.loader_begins_every_step and not _fetches_mostly(loader):
        line = loader.line if facts.loader_is_left_early else line
        cause, advice = _of_short_iterations(facts)
    return Finding(
        rule="data_starved",
        mode=facts.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"the loader starves training: {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=_evidence(facts, claim),
        cause=cause,
        remedy=advice.remedy if advice else None,
        short_remedy=advice.short if advice else None,
        code=advice.code if advice else None,
        line=line,
        speedup=_predicted(facts, advice, weighed.cost, claim),
        speedup_basis="at most"
        if advice is None or advice.predicted is None
        else "measured"
        if advice.measured
        else "predicted",
        no_remedy=None if advice else loader_advice.why_none(facts, loader),
    )


def _fetches_mostly(loader: LoaderSummary) -> bool:
    """Return whether most of the wait is the training thread's own fetch, whatever begins."""
    fetch, wait = loader.fetch.value, loader.wait.value
    return loader.num_workers == 0 and fetch is not None and wait is not None and fetch > wait / 2


def _of_short_iterations(facts: ModeFacts) -> tuple[str, loader_advice.Advice]:
    """Return cause and advice where the loader begins anew in nearly every step."""
    if facts.loader_is_left_early:
        return "a new iterator over the loader is made in nearly every step", loader_advice.Advice(
            remedy="make the iterator once per epoch and read it to its end",
            short="make the iterator once per epoch",
            code="for batch in loader:",
        )
    return "the loader has no more batches than a step or two take, and begins anew after them", loader_advice.Advice(
        remedy="let one iterator last for many epochs: RandomSampler(dataset, num_samples=100 * len(dataset)) shuffles "
        "as often, and gives the same batches where their size divides the data",
        short="let one iterator last for many epochs",
    )


def _predicted(facts: ModeFacts, advice: loader_advice.Advice | None, cost: Figure, wait: Figure) -> Figure:
    """Return what the simulation predicts, else what is left without the part of the cost that the advice removes.

    The latter is a bound: of clock and ablation, which also shows what the loader slows beside the wait, the higher;
    the clock's `wait` where the advice touches nothing else; what may be no gain by the simulation where that is less.
    """
    if advice is not None and advice.predicted is not None:
        return advice.predicted
    most = max((cost, *_ablated(facts)), key=lambda figure: figure.high or figure.value or 0.0)
    if advice is not None and advice.of_wait and wait.value is not None:
        most = wait
    if advice is None:
        return faster_without(most)
    bound = faster_without(stats.scaled(most, advice.removes_at_most))
    if (simulated := advice.at_most) is not None:
        return min(simulated, bound, key=lambda figure: figure.high or math.inf)
    return replace(faster_without(stats.scaled(most, advice.removes)), high=bound.high)


def _ablated(facts: ModeFacts) -> Iterator[Figure]:
    """Yield the ablation's share where it is known to be one, up to what a measurement of the same may differ by.

    The rest of a wide interval says how few its windows are, and nothing of the loader.
    """
    ablation = facts.ablation(loader_advice.ABLATION)
    if ablation is None or not above_zero(ablation.share):
        return
    if _is_waited_for(facts) and _gains_more(ablation.share, _claim(facts)):
        return
    share = ablation.share
    assert share.value is not None
    assert share.high is not None
    yield replace(share, high=min(share.high, share.value + TOLERANCE))


def _refuted(facts: ModeFacts, claim: Figure, weighed: Weighed) -> Finding:
    return Finding(
        rule="data_starved",
        mode=facts.name,
        severity="info",
        status="refuted",
        title=f"training waits for data in {units.share(claim.value or 0.0)} of each step, but gains nothing without",
        cost=weighed.cost,
        evidence=_evidence(facts, claim),
        cause=None,
        remedy=None,
        line=_line(facts),
    )


def _at_edges(facts: ModeFacts, begun: Restarts) -> Finding:
    loader = facts.mode.loader
    assert begun.share.value is not None
    assert begun.seconds.value is not None
    rebuilt = loader is not None and loader.rebuilt
    restarts = loader is not None and loader.num_workers > 0 and (rebuilt or not loader.persistent_workers)
    remedy, short = None, None
    if facts.loader_is_left_early:
        remedy = short = "read the loader to its end before it begins anew"
    if restarts:
        kept = f"{loader_advice.BUILD_ONCE if rebuilt else ''}keep the loader's processes from one epoch to the next"
        remedy = f"{kept}; and {remedy}" if remedy else kept
        short = "build the DataLoader once, with persistent_workers=True" if rebuilt else "set persistent_workers=True"
    every = units.count(begun.every, "step")
    return Finding(
        rule="data_starved",
        mode=facts.name,
        severity=severity(begun.share.value),
        status="inferred",
        title=f"the loader begins anew every {every}, which takes {units.share(begun.share.value)} of the time",
        cost=begun.share,
        share_of="epoch",
        evidence=(
            f"A step in which the loader begins waits {units.seconds(begun.seconds.value)} longer than the others.",
            f"{units.count(begun.count, 'beginning')} seen in measured windows.",
        ),
        cause="the loader's processes are started anew at each beginning" if restarts else None,
        remedy=remedy,
        short_remedy=short,
        code="DataLoader(..., persistent_workers=True)" if restarts else None,
        line=_line(facts) if restarts else loader.line if loader else None,
        speedup=faster_without(begun.share) if remedy else None,
        speedup_basis="at most",
    )


def _evidence(facts: ModeFacts, claim: Figure) -> tuple[str, ...]:
    found = [f"Training waits for data in {units.share(claim.value)} of a step."] if claim.value is not None else []
    ablation = facts.mode.ablations.get(loader_advice.ABLATION)
    if ablation is not None:
        found.append(_ablation_words(facts, claim))
    return (*found, *(loader_advice.known(facts.mode.loader) if facts.mode.loader else ()))


def _ablation_words(facts: ModeFacts, claim: Figure) -> str:
    ablation = facts.mode.ablations[loader_advice.ABLATION]
    if ablation.share.value is None or ablation.gain.value is None:
        return f"The ablation {loader_advice.ABLATION} was not run: {ablation.share.reason}."
    if not above_zero(ablation.share):
        return f"With cached batches (ablation {loader_advice.ABLATION}) a step is not measurably shorter."
    gain = f"With cached batches (ablation {loader_advice.ABLATION}) a step takes {units.seconds(ablation.gain.value)} "
    share = f"({units.share(ablation.share.value)}) less."
    if claim.value is None or agree(claim, ablation.share):
        return gain + share
    if ablation.share.value > claim.value and facts.mode.loader is not None and not facts.mode.loader.num_workers:
        return gain + share + " On cached batches a step also computes faster than after a fetch."
    if ablation.share.value > claim.value:
        return gain + share + " The loader's work also slows what runs beside it on the same cores."
    return gain + share + " Clock and ablation disagree: without the wait for data, the step waits for something else."


def _line(facts: ModeFacts) -> str | None:
    """Return where what feeds the training is built: nearly all that helps is an argument of it, or of its dataset."""
    return facts.mode.loader.arguments_line if facts.mode.loader else None


RULE = Rule(
    name="data_starved",
    title="The loader starves training",
    what="The training loop stands still until the DataLoader gives it the next batch.",
    why="The loader fetches fewer batches per second than training uses: too few processes, no idle cores, a slow "
    "disk, single slow batches, or processes that are started anew too often.",
    how="The wait for data is timed in each step; then the ablation cached_batches replays batches that lie ready. "
    "What that gains is the cost or, where both agree, the more exact of the two; without a GPU, where the training "
    "thread loads by itself, it is no more than the wait. Inside of the loader the fetch, its CPU time, each transform "
    "and the hand-off are timed; where the script has no workers, the ablation one_worker tries one. A simulation of "
    "the DataLoader with these times tells which setting would end the wait; another launch tries it in turns with the "
    "script's own.",
    remedy="Set the number of workers, and of batches fetched ahead, that the simulation names for this machine; where "
    "no core is idle, make the named transform cheaper. Where training waits to take over many tensors that lie ready, "
    "let a batch be fewer.",
    verified=True,
    check=_check,
)
