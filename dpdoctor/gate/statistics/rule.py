"""What a look decides, for one gate or for many at once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpdoctor.gate.statistics.signed_rank import Location


def is_too_slow(at: Location, tolerance: float) -> NDArray[np.bool_]:
    """Return where log ratios lie so high that head regressed: above 0 for certain, and not below the tolerance.

    A lower bound beyond the tolerance would be sure of more, but misses most slowdowns of twice the tolerance.
    """
    return np.asarray((at.low > 0) & (at.value >= math.log1p(tolerance)))


def is_fine(at: Location, tolerance: float) -> NDArray[np.bool_]:
    """Return where log ratios lie below a relative tolerance for certain."""
    return np.asarray(at.high < math.log1p(tolerance))
