"""Which setting of the loader to take: as it is predicted, and as it was measured in a launch of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.ablation import ablations
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import AblationSummary, LoaderPrediction, LoaderSummary, LoaderTrial, ModeSummary
from dpdoctor.analysis.loader.predict import ABLATION, DEFAULT_PREFETCH
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.spec import BESIDE, ONE_WORKER, OTHER_SETTING, SEVERAL_LOADERS, LoaderSetting

# A setting whose step is this close to the best is as good, and cheaper with fewer processes and batches in memory.
AS_GOOD = 1.02
ITERABLE = "an iterable dataset: whether its workers would share it, or each read all of it, is up to its code"
TRIED = "it was tried, not simulated"


def advise(predictions: Sequence[LoaderPrediction], present: Setting) -> tuple[LoaderPrediction | None, str]:
    """Return the prediction to follow, and why; None where the present setting is as good within the interval."""
    known = [p for p in predictions if p.step.value is not None]
    chosen = fewest_of_the_best(known)
    assert chosen is not None
    best = min(_step(p) for p in known)
    now = next(p for p in known if is_of(p, present))
    bound = chosen.step.high if chosen.step.high is not None else chosen.step.value
    assert bound is not None
    if chosen is now or bound >= _step(now):
        return None, (
            f"with {setting_words(now)} a step takes {units.seconds(_step(now))}; no other setting within the budget "
            f"of cores and memory is predicted to be faster beyond its interval (the best: {units.seconds(best)})"
        )
    return chosen, (
        f"{setting_words(chosen)}: the fewest that are within {units.share(AS_GOOD - 1)} of the fastest predicted step"
    )


def _step(prediction: LoaderPrediction) -> float:
    assert prediction.step.value is not None
    return prediction.step.value


def fewest_of_the_best(predictions: Sequence[LoaderPrediction]) -> LoaderPrediction | None:
    """Return of the settings that are as good as the best predicted one that of the fewest processes and batches."""
    known = [p for p in predictions if p.step.value is not None]
    best = min(map(_step, known), default=0.0)
    as_good = (p for p in known if _step(p) <= AS_GOOD * best)
    return min(as_good, key=lambda p: (p.num_workers, p.prefetch_factor or 0), default=None)


def is_of(prediction: LoaderPrediction, setting: Setting) -> bool:
    """Return whether a prediction is that of a setting."""
    factor = setting.prefetch_factor if setting.num_workers else None
    return (prediction.num_workers, prediction.prefetch_factor) == (setting.num_workers, factor)


def setting_words(prediction: LoaderPrediction) -> str:
    """Return the setting of a prediction as a script writes it."""
    factor = "" if prediction.prefetch_factor is None else f", prefetch_factor={prediction.prefetch_factor}"
    return f"num_workers={prediction.num_workers}{factor}"


def changes(loader: LoaderSummary, num_workers: int, prefetch: int | None) -> list[str]:
    """Return the arguments of a DataLoader that change with a setting, as a script writes them.

    Those of workers that torch refuses where there are none are taken back with the last of them. `prefetch`: None
    leaves it as it is.
    """
    if not num_workers:
        of_workers = {
            "prefetch_factor=None": loader.prefetch_factor is not None,
            "persistent_workers=False": loader.persistent_workers,
        }
        return ["num_workers=0", *(argument for argument, is_set in of_workers.items() if is_set)]
    changed = [] if num_workers == loader.num_workers else [f"num_workers={num_workers}"]
    if prefetch is not None and prefetch != (loader.prefetch_factor or DEFAULT_PREFETCH):
        changed.append(f"prefetch_factor={prefetch}")
    if not loader.persistent_workers:
        changed.append("persistent_workers=True")
    return changed


# What promises less is not worth another launch.
LEAST_GAIN = 1.05


def to_try(modes: Mapping[str, ModeSummary]) -> dict[str, LoaderSetting]:
    """Return by mode the setting that is predicted best there, whatever its interval, if it was not measured yet."""
    return {name: found for name, mode in modes.items() if (found := _best(mode)) is not None}


def _best(mode: ModeSummary) -> LoaderSetting | None:
    if mode.status != "ok" or mode.loader is None or _cannot_be_tried(mode):
        return None
    best = fewest_of_the_best(mode.loader.predictions)
    gain = stats.ratio(mode.step, best.step, "x").value if best is not None else None
    if best is None or gain is None or gain < LEAST_GAIN or _was_tried(mode, best):
        return None
    return LoaderSetting(num_workers=best.num_workers, prefetch_factor=best.prefetch_factor or 0)


def _cannot_be_tried(mode: ModeSummary) -> bool:
    """Return whether the ablation with one worker found what keeps any setting from being tried."""
    ablation = mode.ablations.get(BESIDE)
    return ablation is not None and SEVERAL_LOADERS in (ablation.share.reason or "")


def _was_tried(mode: ModeSummary, best: LoaderPrediction) -> bool:
    """Return whether the ablation with one worker measured what is as good, and whether it gains anything."""
    ablation = mode.ablations.get(BESIDE)
    if best.num_workers != 1 or ablation is None or ablation.step.value is None or best.step.value is None:
        return False
    share = ablation.share
    may_gain_nothing = share.low is not None and share.high is not None and share.low <= 0 <= share.high
    return not may_gain_nothing and ablation.step.value <= LEAST_GAIN * best.step.value


def trial(launch: LaunchFacts | None) -> LoaderTrial | None:
    """Return what the launch gave; None: there was none."""
    if launch is None or launch.record.loader_setting is None:
        return None
    found = ablations([launch]).get(OTHER_SETTING)
    reason = launch.record.reason or "the launch that tried it left no window of it"
    speedup = _speedup(found) if found is not None else stats.unknown("x", reason)
    return LoaderTrial(setting=launch.record.loader_setting, speedup=speedup)


def one_worker(ablations: Mapping[str, AblationSummary]) -> LoaderTrial | None:
    """Return what the ablation with one worker gave, as a trial of it; None: it was not measured."""
    ablation = ablations.get(BESIDE)
    return (
        None
        if ablation is None or ablation.share.value is None
        else LoaderTrial(setting=ONE_WORKER, speedup=_speedup(ablation))
    )


def without_gain(mode: ModeSummary) -> LoaderTrial | None:
    """Return the setting that was measured and is not faster; None: there is none, or one is."""
    found = (mode.loader.trial if mode.loader is not None else None) or one_worker(mode.ablations)
    return None if found is None or found.speedup.value is None or is_faster(found) else found


def _speedup(ablation: AblationSummary) -> Figure:
    """Return how many times as fast a step is; 1 / (1 - x), where x is the share of the step that is saved.

    Its interval has no upper end where that of the share reaches all of the step.
    """
    if ablation.share.value is None:
        return stats.unknown("x", ablation.share.reason or "it was not measured")
    low, value, high = (
        None if share is None or share >= 1 else 1 / (1 - share)
        for share in (ablation.share.low, ablation.share.value, ablation.share.high)
    )
    if value is None:
        return stats.unknown("x", "a step took no time with it")
    return Figure(value=value, low=low, high=high, n=ablation.share.n, unit="x")


def better(tried: LoaderTrial | None, other: LoaderTrial | None) -> LoaderTrial | None:
    """Return of two settings that were measured the faster one; None: no launch tried any, and the ablation stands
    alone.
    """
    if tried is None or other is None or other.speedup.value is None or not is_faster(other):
        return tried
    return other if tried.speedup.value is None or other.speedup.value > tried.speedup.value else tried


def decides(
    chosen: LoaderPrediction | None, tried: LoaderTrial | None, ablation: LoaderTrial | None
) -> LoaderTrial | None:
    """Return what was measured that decides on the advice: a launch or, where nothing is predicted to be faster beyond
    its interval, the ablation with one worker if it is; None: the prediction alone.
    """
    if tried is None and chosen is None and ablation is not None and is_faster(ablation):
        return ablation
    return tried


def is_faster(tried: LoaderTrial) -> bool:
    """Return whether a step is measurably shorter with the setting that was tried."""
    return tried.speedup.low is not None and tried.speedup.low > 1


def after_trial(
    chosen: LoaderPrediction | None, tried: LoaderTrial, predictions: Sequence[LoaderPrediction]
) -> tuple[LoaderPrediction | None, str]:
    """Return the same once a setting was tried: what was measured to be faster is advised, and nothing that was not."""
    if tried.speedup.value is None:
        return chosen, words(tried)
    if tried.speedup.low is None:
        return None, f"{words(tried)}, without an interval, so that it could not be told whether it helps"
    if not is_faster(tried):
        return None, f"{words(tried)}, which is not measurably faster"
    setting = Setting(num_workers=tried.setting.num_workers, prefetch_factor=tried.setting.prefetch_factor)
    return next((p for p in predictions if is_of(p, setting)), _not_simulated(setting)), words(tried)


def _not_simulated(setting: Setting) -> LoaderPrediction:
    """Return a setting of which nothing was predicted."""
    unknown = stats.unknown("s", TRIED)
    ahead = setting.prefetch_factor if setting.num_workers else None
    return LoaderPrediction(num_workers=setting.num_workers, prefetch_factor=ahead, step=unknown, wait=unknown)


def after_ablation(chosen: LoaderPrediction | None, reason: str, ablation: LoaderTrial) -> str:
    """Return why nothing is advised, with what the ablation with one worker measured; it alone does not rule out
    others.
    """
    return reason if chosen is not None else f"{words(ablation)}; {reason}"


def words(tried: LoaderTrial) -> str:
    """Return what came of it, in a clause."""
    named = tried.setting.words
    if tried.speedup.value is None:
        return f"{named} could not be tried: {tried.speedup.reason}"
    return f"{named} was tried in turns with the script's own: {speedup_words(tried.speedup)} as fast"


def speedup_words(speedup: Figure) -> str:
    """Return a known speedup with its interval, where it has one."""
    assert speedup.value is not None
    gave = units.times(speedup.value)
    if speedup.low is None:
        return gave
    return units.within(gave, units.times(speedup.low), None if speedup.high is None else units.times(speedup.high))


def tried_step(mode: ModeSummary) -> Figure | None:
    """Return the seconds of a step with one worker; None: that is not advised, or was not tried.

    None, too, where fetching more batches ahead than by default, as the ablation does, is predicted to be so much
    faster yet that it is worth a launch, which then tries it.
    """
    loader, ablation = mode.loader, mode.ablations.get(ABLATION)
    advised = loader.advice if loader is not None else None
    if loader is None or loader.num_workers or advised is None or advised.num_workers != 1 or ablation is None:
        return None
    if (
        ablation.step.value is None
        or advised.step.value is None
        or ablation.step.value > LEAST_GAIN * advised.step.value
    ):
        return None
    return ablation.step
