"""What one worker did where the script's loader has none: measured in the windows of the ablation that tries it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.loader.feed import feed
from dpdoctor.analysis.loader.measured import DEFAULT_PREFETCH, Measured, UnknownError, measured
from dpdoctor.analysis.loader.predict import Basis
from dpdoctor.analysis.summary import AblationSummary
from dpdoctor.spec import BESIDE, RunHeader

ABLATION = BESIDE


def tried(
    present: Measured, launch: LaunchFacts, ablations: Mapping[str, AblationSummary], header: RunHeader
) -> Basis | None:
    """Return what the ablation measured; None: it did not run, or too little of it is known."""
    step = ablations[ABLATION].step if ABLATION in ablations else None
    found = feed(launch, ablation=ABLATION)
    if step is None or step.value is None or found is None:
        return None
    loader = dataclasses.replace(found.loader, num_workers=1, prefetch_factor=DEFAULT_PREFETCH, in_order=True)
    try:
        beside = measured(dataclasses.replace(found, loader=loader), launch, header)
    except UnknownError:
        return None
    # Cores were counted in the full windows alone.
    cores = dataclasses.replace(present.cores, fetch=beside.cores.fetch)
    return Basis(dataclasses.replace(beside, cores=cores), step)
