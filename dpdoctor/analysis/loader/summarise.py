"""ModeSummary.loader of every mode of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.loader import advice, budget, control, facts, parts, stalls, trial
from dpdoctor.analysis.loader.feed import Feed, feed
from dpdoctor.analysis.loader.measured import UnknownError, measured
from dpdoctor.analysis.loader.model import LoaderPrediction, LoaderSummary, LoaderTrial
from dpdoctor.analysis.loader.predict import Basis, Predictor
from dpdoctor.analysis.loader.tried import tried
from dpdoctor.analysis.summary import ModeSummary
from dpdoctor.spec import BASELINE, RunHeader

# torch's own sampler of an IterableDataset.
_ITERABLE_SAMPLER = "_InfiniteConstantSampler"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fed:
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
) -> dict[str, ModeSummary]:
    """Return the modes with what fed their training in the launch that speaks for each; failed ones as they are."""
    found = {name: _fed(mode, launches.get(name), trials.get(name), header) for name, mode in modes.items()}
    fed = {name: one for name, one in found.items() if one is not None}
    summaries = {name: _summary(one, fed.get(BASELINE), header) for name, one in fed.items()}
    return {name: dataclasses.replace(mode, loader=summaries.get(name)) for name, mode in modes.items()}


def _fed(mode: ModeSummary, launch: LaunchFacts | None, tried_in: LaunchFacts | None, header: RunHeader) -> _Fed | None:
    found = feed(launch) if launch is not None and mode.status != "failed" else None
    if launch is None or found is None:
        return None
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
    return Predictor(
        Basis(present, mode.step), None if found.loader.num_workers else tried(present, launch, mode.ablations, header)
    )


def _summary(fed: _Fed, baseline: _Fed | None, header: RunHeader) -> LoaderSummary:
    loader, found, launch = fed.feed.loader, fed.feed, fed.launch
    predictions: tuple[LoaderPrediction, ...] = ()
    chosen, reason = None, fed.reason
    if fed.predictor is not None:
        room = budget.budget(found, launch, header)
        predictions = fed.predictor.predictions(budget.settings(fed.predictor.present.measured, room))
        chosen, reason = advice.advise(predictions, fed.predictor.present.measured.setting)
    ablation = trial.one_worker(fed.mode.ablations)
    decides = trial.decides(chosen, fed.trial, ablation)
    if decides is not None:
        chosen, reason = trial.after_trial(chosen, decides, predictions)
    else:
        reason = trial.after_ablation(chosen, reason, ablation)
    if loader.sampler == _ITERABLE_SAMPLER:
        chosen, reason = None, advice.ITERABLE
    return LoaderSummary(
        index=found.number,
        line=loader.line,
        built_at=loader.built,
        dataset=loader.dataset,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        batch_bytes=facts.batch_bytes(found),
        fetch=facts.fetch(found),
        fetch_cv=facts.fetch_cv(found),
        cpu_ratio=facts.cpu_ratio(found),
        collate=facts.collate(found),
        wait=facts.wait(found),
        ready_batches=facts.ready(found),
        transfer=facts.receive(found, facts.hand_offs(found, launch)),
        epoch_start=facts.edge(found),
        transforms=parts.transforms(found, launch),
        workers=parts.workers(found),
        predictions=predictions,
        advice=chosen,
        advice_reason=reason,
        baseline_same_workers=_control(fed, baseline),
        trial=decides,
        slow_fetches=stalls.slow_fetches(found, fed.predictor.present if fed.predictor else None),
    )


def _control(fed: _Fed, baseline: _Fed | None) -> LoaderPrediction | None:
    """Return the control; None where the ranks have no more loader processes than one device, or nothing is known."""
    if fed.mode.world_size == 1 or not fed.feed.loader.num_workers or baseline is None or baseline.predictor is None:
        return None
    setting = control.as_many_processes(
        baseline.predictor.present.measured, fed.feed.loader.num_workers, fed.mode.world_size
    )
    return baseline.predictor.predictions([setting])[0]
