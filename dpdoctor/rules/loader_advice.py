"""Why a loader is too slow, and what to change: read from what is known of it inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Figure, LoaderPrediction, LoaderSummary, ModeFacts, SlowFetches
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.loader import trial
from dpdoctor.analysis.loader.feed import why_unseen
from dpdoctor.analysis.loader.predict import DEFAULT_PREFETCH
from dpdoctor.analysis.loader.trial import changes, tried_step
from dpdoctor.analysis.machine import BUSY
from dpdoctor.analysis.weighing import COVERAGE, main_part

# Share of its fetch's wall time that a worker computes, below which it waits for a disk, a network or a lock. Stricter
# than SageMaker Debugger, which flags loader processes that use less than 70% of a core.
WAITING = 0.4
# A part of a fetch is worth naming from this share of it, a transform beside the costliest from this share of that.
NAMED, NAMED_BESIDE = 0.1, 0.5
# By how much what is left of a fetch may be faster without the costliest part of it, which leaves caches and cores to
# the others: 0.16 to 0.28 by tests/benchmarks/remedy_gain.py, of two transforms under DDP. For a bound, twice that.
REST_FASTER = 0.5
COLLATE = "collate"
# The ablation in which no loader works.
ABLATION = "cached_batches"
# Two or three tensors a batch are what a sample and its label take: up to this many cannot be made much fewer.
FEW_TENSORS = 4
# By how much, as half an interval, what was tried in turns in one launch may compare otherwise in another: of thirteen
# by tests/benchmarks/remedy_gain.py one lay 1% beyond what its windows said, and one 6% beyond a wider interval.
OTHER_LAUNCH = 0.05
# The processes of a DataLoader end with it, whatever persistent_workers says.
BUILD_ONCE = "build the DataLoader once, before the loop over epochs, and "


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a loader; `predicted` is the throughput after it over that of now, `measured` in this run.

    `at_most` is the same where it may be no gain. `short` is the remedy in a few words, `removes` the part of the cost
    that it takes away if it takes away what it names, `removes_at_most` the most, where nothing was predicted.
    `of_wait`: the cost of which it is a part is the wait alone, and nothing that the loader's work slows beside it.
    """

    remedy: str
    short: str | None = None
    code: str | None = None
    predicted: Figure | None = None
    at_most: Figure | None = None
    measured: bool = False
    removes: float = 1.0
    removes_at_most: float = 1.0
    of_wait: bool = False


def cause(facts: ModeFacts, loader: LoaderSummary) -> str | None:
    """Return the one thing that explains most of the waiting, in words; None: no single one does."""
    wait = loader.wait.value
    if not wait:
        return None
    parts = {
        "hand-off": _handing_over(facts, loader),
        "head of line": wait - _least_wait(loader, wait, more_workers=False),
        "slow fetches": _slow_s(facts, loader),
        "too few workers": wait - _least_wait(loader, wait, more_workers=True),
    }
    # The first that explains enough: the others would also help, but cost more.
    name = next((name for name, part in parts.items() if main_part({name: part}, wait)), None)
    if name == "hand-off":
        return f"taking over a batch that lies ready takes {units.seconds(parts[name])}"
    if name == "head of line":
        return "single slow batches hold up those that lie ready behind them"
    if name == "slow fetches" and loader.slow_fetches is not None:
        return _slow_words(loader.slow_fetches)
    if name is None and not are_exhausted(facts):
        return None
    return _slow_fetch(facts, loader, enough_cores=name is not None)


def _handing_over(facts: ModeFacts, loader: LoaderSummary) -> float:
    """Return the seconds that taking over a batch keeps the training thread when it lies ready.

    0 where it has few tensors and the loader's processes take the cores: what it keeps the thread for is a core.
    """
    has_few = loader.batch_tensors is not None and loader.batch_tensors <= FEW_TENSORS
    waits_for_core = has_few and takes_cores(facts)
    return 0.0 if waits_for_core or not loader.num_workers else loader.transfer.value or 0.0


def _slow_s(facts: ModeFacts, loader: LoaderSummary) -> float:
    """Return the seconds of a step that fetches cost which take far longer than the others.

    0 where others took cores: a slow fetch may have waited for its own.
    """
    if facts.others:
        return 0.0
    without = loader.slow_fetches.step.value if loader.slow_fetches is not None else None
    return facts.mode.step.value - without if without is not None and facts.mode.step.value is not None else 0.0


def _slow_words(slow: SlowFetches) -> str:
    waits = f", {units.share(1 - slow.cpu_ratio)} of it waiting" if slow.cpu_ratio < WAITING else ""
    return (
        f"{units.whole(slow.count)} of {units.count(slow.total, 'fetch')} take {units.seconds(slow.seconds)}{waits}; "
        f"the usual one takes {units.seconds(slow.usual_seconds)}"
    )


def _least_wait(loader: LoaderSummary, wait: float, *, more_workers: bool) -> float:
    """Return the least wait predicted with more workers, or with as many and more batches fetched ahead."""
    waits = [p.wait.value for p in loader.predictions if p.wait.value is not None and _is_more(p, loader, more_workers)]
    return min(waits, default=wait)


def _is_more(prediction: LoaderPrediction, loader: LoaderSummary, more_workers: bool) -> bool:
    if more_workers:
        return prediction.num_workers > loader.num_workers
    ahead = (prediction.prefetch_factor or 0) > (loader.prefetch_factor or 0)
    return prediction.num_workers == loader.num_workers > 0 and ahead


def _slow_fetch(facts: ModeFacts, loader: LoaderSummary, *, enough_cores: bool) -> str:
    if _waits(facts, loader):
        assert loader.cpu_ratio.value is not None
        return (
            f"a fetch waits, for a disk, a network or a lock, in {units.share(1 - loader.cpu_ratio.value)} of its time"
        )
    if not enough_cores:
        return f"the cores are exhausted: all {facts.fingerprint.cores} are busy"
    if loader.num_workers:
        return f"{units.count(loader.num_workers, 'worker')} cannot fetch as many batches as training uses"
    return "the training thread fetches each batch itself (num_workers=0), and does not train meanwhile"


def _waits(facts: ModeFacts, loader: LoaderSummary) -> bool:
    """Return whether a fetch waits for something that is not a core: on a busy machine that cannot be told."""
    return _computes_little(loader) and not are_exhausted(facts) and not facts.is_busy


def _computes_little(loader: LoaderSummary) -> bool:
    return loader.cpu_ratio.value is not None and loader.cpu_ratio.value < WAITING


def are_exhausted(facts: ModeFacts) -> bool:
    """Return whether ranks and loader processes keep all cores busy."""
    found = facts.cores
    if found is None or found.ranks_busy is None or found.workers_busy is None:
        return False
    return found.ranks_busy + found.workers_busy >= BUSY * found.cores


def takes_cores(facts: ModeFacts) -> bool:
    """Return whether the loader's processes take cores from training: without them it gains more than its wait."""
    check = next((check for check in facts.mode.cross_checks if check.ablation == ABLATION), None)
    if check is None or check.agrees is not False or not are_exhausted(facts):
        return False
    return (check.gain.value or 0.0) > (check.observed.value or 0.0)


def advice(facts: ModeFacts, loader: LoaderSummary) -> Advice | None:
    """Return what to change: the settings that the simulation found, else what makes a hand-off or a fetch cheaper."""
    if loader.advice is not None:
        return _settings(facts, loader, loader.advice)
    wait, handing_over = loader.wait.value or 0.0, _handing_over(facts, loader)
    if wait and main_part({"hand-off": handing_over}, wait):
        return _of_hand_off(facts, loader, part=min(1.0, handing_over / wait))
    _, share = _slowest_part(loader)
    if _slow_s(facts, loader) > max(share, NAMED) * wait:
        return _without_slow(facts, loader)
    if _waits(facts, loader):
        return Advice(
            remedy="keep the data in memory, or read it in larger pieces from a faster disk",
            short="keep the data in memory",
        )
    if facts.others and _why_not_the_fetch(loader):
        return None
    return _cheaper_part(facts, loader)


def why_none(facts: ModeFacts, loader: LoaderSummary | None) -> str | None:
    """Return why there is no advice, as far as that is known."""
    found = _why_not_the_fetch(loader) if loader is not None and facts.others else None
    return found or why_unseen(facts.mode)


def _why_not_the_fetch(loader: LoaderSummary) -> str | None:
    """Return why a cheaper fetch is no advice while others take cores; None: it is."""
    if _computes_little(loader):
        # For a disk, or for a core in a way that the kernel does not tell.
        return "a fetch mostly waits, and while others take cores it is not known for what"
    if loader.fetch.value is None:
        return None
    own = loader.fetch.value - ((loader.queued.value or 0.0) if loader.queued else 0.0)
    lie_ready = sum(share for depth, share in loader.ready_batches.items() if depth) >= COVERAGE
    if lie_ready and main_part({"fetch": own}, loader.wait.value or 0.0) is None:
        return "batches lie ready, and to take one over waits for cores that others take"
    return None


def _of_hand_off(facts: ModeFacts, loader: LoaderSummary, part: float) -> Advice | None:
    """Return what helps where training waits for a hand-off in this part of its wait; None: nothing that is known.

    Batches lie ready: training would wait as long for those that are fetched faster, unless it needs no workers then.
    """
    if loader.batch_tensors is None or loader.batch_tensors > FEW_TENSORS:
        return Advice(
            remedy="let a batch be a few tensors: each is handed over by itself, and what is no tensor is pickled",
            short="let a batch be fewer tensors",
            removes=part,
            removes_at_most=part,
            of_wait=True,
        )
    costly = _costly_parts(loader)
    handing_over, rest = _handing_over(facts, loader), (loader.fetch.value or 0.0) * (1 - sum(costly.values()))
    if not costly or rest >= handing_over:
        return None
    without = ", ".join(changes(loader, 0, None))
    # The rest of a fetch is waited for then, in the place of the hand-off.
    return Advice(
        remedy=f"{_cheaper(costly)}; then set {without}: fetching takes less than handing over",
        short=f"make {_listed(costly)} cheaper{_no_gain(facts)}",
        removes=part * (1 - rest / handing_over),
        removes_at_most=part * (1 - (1 - REST_FASTER) * rest / handing_over),
        of_wait=True,
    )


def _cheaper_part(facts: ModeFacts, loader: LoaderSummary) -> Advice | None:
    """Return that the costliest parts of a fetch are to be cheaper; None: none is worth a name."""
    costly = _costly_parts(loader)
    if not costly:
        return None
    share = sum(costly.values())
    return Advice(
        remedy=_cheaper(costly),
        short=f"make {_listed(costly)} cheaper{_no_gain(facts)}",
        removes=share,
        removes_at_most=share + REST_FASTER * (1 - share),
    )


def _cheaper(parts: Mapping[str, float]) -> str:
    share = units.share(sum(parts.values()))
    are, it, its = ("are", "them", "their") if len(parts) > 1 else ("is", "it", "its")
    return (
        f"make {_listed(parts)} cheaper, which {are} {share} of a fetch: do {it} for whole batches, on the device, or "
        f"store {its} result where it is always the same"
    )


def _no_gain(facts: ModeFacts) -> str:
    """Return, as the end of a sentence, which number of workers was measured and not seen to help; empty: none was."""
    found = trial.without_gain(facts.mode)
    if found is None:
        return ""
    setting, measured = f"num_workers={found.setting.num_workers}", f"measured {trial.speedup_words(found.speedup)}"
    if found.speedup.low is None:
        return f"; whether {setting} helps could not be told: {measured}, without an interval"
    is_slower = found.speedup.high is not None and found.speedup.high < 1
    others = f" while {taken}, which its worker would have had" if (taken := facts.taken_from_a_worker) else ""
    return f"; {setting} {'is slower' if is_slower else 'is not measurably faster'}: {measured}{others}"


def _without_slow(facts: ModeFacts, loader: LoaderSummary) -> Advice:
    assert loader.slow_fetches is not None
    predicted = stats.ratio(facts.mode.step, loader.slow_fetches.step, "x")
    may_be_none = predicted.low is not None and predicted.low <= 1
    return Advice(
        remedy="look at what single batches hold: a large or damaged file, one on a slower disk, an item that is hard "
        "to decode; prepare it once, or leave it out",
        short="find why single fetches are slow",
        predicted=None if may_be_none else predicted,
        at_most=predicted if may_be_none else None,
    )


def _settings(facts: ModeFacts, loader: LoaderSummary, to: LoaderPrediction) -> Advice:
    tried = tried_step(facts.mode) if loader.trial is None else None
    arguments = ", ".join(
        changes(loader, to.num_workers, DEFAULT_PREFETCH if tried is not None else to.prefetch_factor)
    )
    predicted = stats.ratio(facts.mode.step, to.step if tried is None else tried, "x")
    in_trial = loader.trial is not None and loader.trial.speedup.value is not None
    if loader.trial is not None and in_trial:
        predicted = loader.trial.speedup
    once = BUILD_ONCE if to.num_workers and loader.rebuilt else ""
    if measured := tried is not None or in_trial:
        # What was measured within one launch is to come true in another.
        predicted = stats.calibrated(predicted, OTHER_LAUNCH)
    return Advice(
        remedy=f"{once}set {arguments}; now it is num_workers={loader.num_workers}",
        short=f"set {arguments}",
        code=f"DataLoader(..., {arguments})",
        predicted=predicted if predicted.value is not None else None,
        measured=measured,
    )


def _slowest_part(loader: LoaderSummary) -> tuple[str, float]:
    """Return the costliest transform, or collate where that takes longer, and its share of a fetch."""
    return _largest(_parts(loader))


def _parts(loader: LoaderSummary) -> dict[str, float]:
    parts = _transforms(loader)
    if loader.collate.value is not None and loader.fetch.value:
        parts[COLLATE] = loader.collate.value / loader.fetch.value
    return parts


def _transforms(loader: LoaderSummary) -> dict[str, float]:
    shares: dict[str, float] = {}
    for transform in loader.transforms:  # a chain may hold two of a name
        shares[transform.name] = shares.get(transform.name, 0.0) + transform.share
    return shares


def _largest(parts: Mapping[str, float]) -> tuple[str, float]:
    name = max(parts, key=lambda part: parts[part], default="")
    return name, parts.get(name, 0.0)


def _costly_parts(loader: LoaderSummary) -> dict[str, float]:
    """Return what takes most of a fetch, by name with its share of it; empty: nothing is worth a name.

    It is collate, the rest of what the dataset does for an item, or the costliest transform with those that take about
    as much: what does one of them for a whole batch has all of them to do.
    """
    transforms = _transforms(loader)
    least = max(NAMED, NAMED_BESIDE * max(transforms.values(), default=0.0))
    # As they are called, whichever takes longest: modes that differ in that alone have one remedy.
    groups = [{name: share for name, share in transforms.items() if share >= least}]
    parts = _parts(loader)
    if COLLATE in parts:
        groups += {COLLATE: parts[COLLATE]}, {f"loading an item of {loader.dataset}": 1 - sum(parts.values())}
    costly = max(groups, key=lambda group: sum(group.values()))
    return costly if sum(costly.values()) >= NAMED else {}


def _listed(parts: Iterable[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def known(loader: LoaderSummary) -> list[str]:
    """Return what is known of the loader, one sentence each."""
    found = []
    where = f"by {units.count(loader.num_workers, 'worker')}" if loader.num_workers else "in the main process"
    if loader.fetch.value is not None:
        found.append(f"Batches are loaded {where}: {units.seconds(loader.fetch.value)} each{_spent_on(loader)}.")
    if costly := _costly_parts(loader):
        found.append(f"{_listed(f'{name} is {units.share(share)}' for name, share in costly.items())} of a fetch.")
    if loader.slow_fetches is not None:
        words = _slow_words(loader.slow_fetches)
        found.append(f"{words[0].upper()}{words[1:]}.")
    if loader.advice is not None and loader.trial is not None:
        found.append(f"{trial.words(loader.trial)}.")
    if loader.advice is None and loader.advice_reason:
        found.append(f"No num_workers recommendation: {loader.advice_reason}.")
    return found


def _spent_on(loader: LoaderSummary) -> str:
    """Return, as the end of a sentence, how much of a fetch is a wait for a core, and how much of the rest CPU time."""
    assert loader.fetch.value is not None
    ratio, queued = loader.cpu_ratio.value, loader.queued.value if loader.queued else None
    computing = None if ratio is None else units.share(min(1.0, ratio))
    if not queued or queued < NAMED * loader.fetch.value:
        return f", {computing} of it CPU time" if computing else ""
    of_rest = f", {computing} of the rest CPU time" if computing else ""
    return f", {units.seconds(queued)} of it waiting for a core{of_rest}"
