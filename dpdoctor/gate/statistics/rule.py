"""What a look decides, for one gate or for many at once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpdoctor.gate.statistics.signed_rank import Location

# Share of the tolerance, of log ratios, that head must be slower for certain. Simulated, where pairs differ by 6 %:
# with 0, 0.2 % of gates of the same code fail and 2.8 % of those 2 % slower; with a half 0.03 % and 0.7 %, and the
# slowdown that is found with a probability of 80 % grows from 7.1 to 7.4 %. With 1 it would be 10.3 %.
CERTAIN = 0.5


def is_too_slow(at: Location, tolerance: float) -> NDArray[np.bool_]:
    """Return where log ratios lie so high that head regressed.

    By the estimate it is not below the tolerance, and for certain above CERTAIN of it.
    """
    allowed = math.log1p(tolerance)
    return np.asarray((at.low > CERTAIN * allowed) & (at.value >= allowed))


def is_fine(at: Location, tolerance: float) -> NDArray[np.bool_]:
    """Return where log ratios lie below a relative tolerance for certain."""
    return np.asarray(at.high < math.log1p(tolerance))
