"""The control of a mode's loaders: N ranks have N times the loader processes, and that alone may make them faster."""

from __future__ import annotations

import dataclasses

from dpdoctor.analysis.loader.measured import Measured
from dpdoctor.analysis.loader.simulate import Setting


def as_many_processes(baseline: Measured, num_workers: int, world_size: int) -> Setting:
    """Return the baseline's setting with as many loader processes as all ranks of a mode have together."""
    return dataclasses.replace(baseline.setting, num_workers=world_size * num_workers)
