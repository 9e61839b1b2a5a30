"""Which of the predicted settings to set."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis.loader.model import LoaderPrediction
from dpdoctor.analysis.loader.simulate import Setting

# A setting whose step is this close to the best is as good, and cheaper with fewer processes and batches in memory.
AS_GOOD = 1.02
ITERABLE = "an iterable dataset: whether its workers would share it, or each read all of it, is up to its code"


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
            f"with {_words(now)} a step takes {units.seconds(_step(now))}; no other setting within the budget of cores "
            f"and memory is predicted to be faster beyond its interval (the best: {units.seconds(best)})"
        )
    return chosen, (
        f"{_words(chosen)}: the fewest that are within {units.share(AS_GOOD - 1)} of the fastest predicted step"
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


def _words(prediction: LoaderPrediction) -> str:
    factor = "" if prediction.prefetch_factor is None else f", prefetch_factor={prediction.prefetch_factor}"
    return f"num_workers={prediction.num_workers}{factor}"
