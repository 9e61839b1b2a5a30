"""Numbers as exporters write them, into arrays: as numbers, as text, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.columns import UNKNOWN

_INT64 = np.iinfo(np.int64)


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return int64[n], UNKNOWN where there is no number; quick for what nearly all files hold."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (ValueError, OverflowError, TypeError):
        return np.fromiter(map(integer, values), np.int64, len(values))


def integer(value: Any) -> int:
    """Return a number, or the number that a text writes, decimal or hexadecimal; UNKNOWN for anything else."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError, TypeError):
        return UNKNOWN
    return number if _INT64.min <= number <= _INT64.max else UNKNOWN


def nanoseconds(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return microseconds in ns; whole microseconds of unix time stay exact, which a float product would not keep."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1e3).astype(np.int64)


def whole_numbers(value: object) -> tuple[int, ...]:
    """Return a list's numbers; empty for anything else than a list of whole numbers."""
    if not isinstance(value, list) or not all(is_whole(item) for item in value):
        return ()
    return tuple(value)


def is_whole(value: object) -> bool:
    """Return whether this is a whole number of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and _INT64.min <= value <= _INT64.max
