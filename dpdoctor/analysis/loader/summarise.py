"""ModeSummary.loader of every mode of a run: what its loader took, and what other settings would give.

Only settings for which this machine has the cores and the memory, all ranks counted. N ranks have N times the loader
processes, and that alone may make them faster: a control with as many processes tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.base.summary import LoaderPrediction, LoaderSummary, LoaderTrial, ModeSummary
from dpdoctor.analysis.loader import predict, trial
from dpdoctor.analysis.loader.feed import (
    Feed,
    batch_bytes,
    batch_tensors,
    collate_time,
    cpu_ratio,
    epoch_start,
    feed,
    fetch_cv,
    fetch_time,
    hand_offs_of,
    queued_time,
    ready_shares,
    receive_time,
    transform_summaries,
    wait_time,
    worker_summaries,
)
from dpdoctor.analysis.loader.predict import Basis, Measured, Predictor, UnknownError, measured, ranks_of_a_node, tried
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.records import Launch, Sample
from dpdoctor.spec import BASELINE, RunHeader


def as_many_processes(baseline: Measured, num_workers: int, world_size: int) -> Setting:
    """Return the baseline's setting with as many loader processes as all ranks of a mode have together."""
    return replace(baseline.setting, num_workers=world_size * num_workers)


PREFETCH_FACTORS = (1, 2, 4, 8)
# Every number of workers up to here, then steps of about a quarter: what lies between differs by less than the model.
ALL_UP_TO = 8
FURTHER = (10, 12, 16, 20, 24, 32, 40, 48, 64)
# A fetch that seems to take no core at all takes this part of one.
LEAST_FETCH_CORES = 0.05
# Shared memory for a batch: a freed one may still be mapped while the next is being made.
SHM_MARGIN = 1.5


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on the fullest node. None: not known, and so no limit.

    Attributes:
        ranks: that share the node.
        memory: free for more workers; `per_worker` is what one may take at most.
        shm: free for batches; `per_batch` is what one takes.
    """

    ranks: int
    memory: float | None
    per_worker: float
    shm: float | None
    per_batch: float

    def has_room(self, setting: Setting) -> bool:
        """Return whether every rank can have its workers with all their batches."""
        workers = self.ranks * setting.num_workers
        fits_memory = self.memory is None or workers * self.per_worker <= self.memory
        batches = workers * setting.prefetch_factor
        return fits_memory and (self.shm is None or batches * self.per_batch * SHM_MARGIN <= self.shm)


def settings(measured: Measured, budget: Budget) -> list[Setting]:
    """Return the settings to predict, fewest workers first; the present one is among them.

    Workers that compute are no more than the cores; those that wait for I/O may be.
    """
    most = measured.cores.num / max(LEAST_FETCH_CORES, measured.cores.fetch)
    numbers = [n for n in (*range(1, ALL_UP_TO + 1), *FURTHER) if n <= max(1.0, most)]
    in_order = measured.setting.in_order
    wanted = {Setting(num_workers=0, prefetch_factor=measured.setting.prefetch_factor, in_order=in_order)}
    for number in numbers:
        for factor in {*PREFETCH_FACTORS, measured.setting.prefetch_factor}:
            wanted.add(Setting(num_workers=number, prefetch_factor=factor, in_order=in_order))
    found = {setting for setting in wanted if budget.has_room(setting)} | {measured.setting}
    return sorted(found, key=lambda setting: (setting.num_workers, setting.prefetch_factor))


def budget(feed: Feed, launch: Launch, header: RunHeader) -> Budget:
    """Return what the node's samplers saw of its memory while the mode ran."""
    host = [sample for sample in launch.samples if sample.source == "host"]
    used = _most(host, "memory_used_bytes")
    workers = feed.loader.num_workers * ranks_of_a_node(launch)
    per_worker = _per_worker(launch)
    # Workers that run already are in what is used.
    held = workers * per_worker
    shm_total, shm_used = _most(host, "shm_total_bytes"), _most(host, "shm_used_bytes")
    return Budget(
        ranks=ranks_of_a_node(launch),
        memory=None if used is None else header.fingerprint.memory_bytes - used + held,
        per_worker=per_worker,
        shm=None if shm_total is None or shm_used is None else shm_total - shm_used,
        per_batch=batch_bytes(feed) or 0.0,
    )


def _per_worker(launch: Launch) -> float:
    """Return the bytes of one worker; of a rank's process before there are workers, which share its memory at first."""
    workers = [
        s.values["memory_bytes"] / s.values["num_processes"] for s in launch.samples if s.source.endswith(".workers")
    ]
    ranks = [s.values["memory_bytes"] for s in launch.samples if s.source.removeprefix("rank").isdigit()]
    return max(workers or ranks, default=0.0)


def _most(samples: Iterable[Sample], name: str) -> float | None:
    return max((sample.values[name] for sample in samples if name in sample.values), default=None)


# torch's own sampler of an IterableDataset.
_ITERABLE_SAMPLER = "_InfiniteConstantSampler"


class _Fed(msgspec.Struct, frozen=True, kw_only=True):
    """One mode whose loader was recorded. `predictor` None: `reason` says what is missing."""

    launch: LaunchFacts
    feed: Feed
    mode: ModeSummary
    predictor: Predictor | None
    trial: LoaderTrial | None
    reason: str = ""


def with_loaders(
    modes: Mapping[str, ModeSummary],
    launches: Mapping[str, LaunchFacts],
    trials: Mapping[str, LaunchFacts],
    header: RunHeader,
    disturbed: Collection[str] = (),
) -> dict[str, ModeSummary]:
    """Return the modes with what fed their training in the launch that speaks for each; failed ones as they are.

    `disturbed`: the modes in which other processes took cores that ranks missed.
    """
    found = {
        name: _fed(mode, launches.get(name), trials.get(name), header, disturbed=name in disturbed)
        for name, mode in modes.items()
    }
    fed = {name: one for name, one in found.items() if one is not None}
    summaries = {name: _summary(one, fed.get(BASELINE), header) for name, one in fed.items()}
    return {name: replace(mode, loader=summaries.get(name)) for name, mode in modes.items()}


def _fed(
    mode: ModeSummary, launch: LaunchFacts | None, tried_in: LaunchFacts | None, header: RunHeader, *, disturbed: bool
) -> _Fed | None:
    found = feed(launch) if launch is not None and mode.status != "failed" else None
    if launch is None or found is None:
        return None
    found = replace(found, disturbed=disturbed)
    predictor, reason = None, ""
    try:
        predictor = _predictor(found, launch, mode, header)
    except UnknownError as error:
        reason = str(error)
    return _Fed(
        launch=launch,
        feed=found,
        mode=mode,
        predictor=predictor,
        trial=trial.better(trial.trial(tried_in), trial.one_worker(mode.ablations)),
        reason=reason,
    )


def _predictor(found: Feed, launch: LaunchFacts, mode: ModeSummary, header: RunHeader) -> Predictor:
    if mode.step.value is None:
        raise UnknownError(mode.step.reason or "no step time")
    present = measured(found, launch, header)
    beside = None
    if not found.loader.num_workers:
        beside = tried(present, launch, mode.ablations, header, disturbed=found.disturbed)
    return Predictor(Basis(present, mode.step), beside)


def _summary(fed: _Fed, baseline: _Fed | None, header: RunHeader) -> LoaderSummary:
    loader, found, launch = fed.feed.loader, fed.feed, fed.launch
    hand_offs = hand_offs_of(found, launch)
    predictions: tuple[LoaderPrediction, ...] = ()
    chosen, reason = None, fed.reason
    if fed.predictor is not None:
        room = budget(found, launch, header)
        predictions = fed.predictor.predictions(settings(fed.predictor.present.measured, room))
        chosen, reason = trial.advise(predictions, fed.predictor.present.measured.setting)
    ablation = trial.one_worker(fed.mode.ablations)
    decides = trial.decides(chosen, fed.trial, ablation)
    why_none = f"no other setting is predicted: {fed.reason}" if fed.reason else ""
    if decides is not None:
        chosen, reason = trial.after_trial(chosen, decides, predictions)
        reason += f"; {why_none}" if why_none else ""
    elif ablation is not None:
        reason = trial.after_ablation(chosen, why_none or reason, ablation)
    if loader.sampler == _ITERABLE_SAMPLER:
        chosen, reason = None, trial.ITERABLE
    return LoaderSummary(
        index=found.number,
        line=loader.line,
        built_at=loader.built,
        dataset=loader.dataset,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        rebuilt=loader.rebuilt,
        queued=queued_time(found),
        batch_tensors=batch_tensors(hand_offs),
        batch_bytes=batch_bytes(found),
        fetch=fetch_time(found),
        fetch_cv=fetch_cv(found),
        cpu_ratio=cpu_ratio(found),
        collate=collate_time(found),
        wait=wait_time(found),
        ready_batches=ready_shares(found),
        transfer=receive_time(found, hand_offs),
        epoch_start=epoch_start(found),
        transforms=transform_summaries(found, launch),
        workers=worker_summaries(found),
        predictions=predictions,
        advice=chosen,
        advice_reason=reason,
        baseline_same_workers=_control(fed, baseline),
        trial=decides,
        slow_fetches=predict.slow_fetches(found, fed.predictor.present if fed.predictor else None),
    )


def _control(fed: _Fed, baseline: _Fed | None) -> LoaderPrediction | None:
    """Return the control; None where the ranks have no more loader processes than one device, or nothing is known."""
    if fed.mode.world_size == 1 or not fed.feed.loader.num_workers or baseline is None or baseline.predictor is None:
        return None
    setting = as_many_processes(baseline.predictor.present.measured, fed.feed.loader.num_workers, fed.mode.world_size)
    return baseline.predictor.predictions([setting])[0]
