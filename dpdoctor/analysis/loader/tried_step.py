"""The step that this run measured with the number of workers that is advised, which says more than its prediction."""

from __future__ import annotations

from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.loader.advice import AS_GOOD
from dpdoctor.analysis.loader.tried import ABLATION
from dpdoctor.analysis.summary import ModeSummary


def tried_step(mode: ModeSummary) -> Figure | None:
    """Return the seconds of a step with one worker; None: that is not advised, or was not tried.

    None, too, where fetching more batches ahead than by default, as the ablation does, is predicted to be faster yet.
    """
    loader, ablation = mode.loader, mode.ablations.get(ABLATION)
    advised = loader.advice if loader is not None else None
    if loader is None or loader.num_workers or advised is None or advised.num_workers != 1 or ablation is None:
        return None
    if ablation.step.value is None or advised.step.value is None or ablation.step.value > AS_GOOD * advised.step.value:
        return None
    return ablation.step
