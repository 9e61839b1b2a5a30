"""Which call of the runtime put each event on its device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.columns import UNKNOWN, Events, Kind


def launches(events: Events, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: the row of the runtime call with the correlation of each device event; UNKNOWN: none."""
    calls = np.flatnonzero((events.kind == Kind.RUNTIME) & (events.correlation != UNKNOWN))
    return matching(calls, events.correlation[calls], events.correlation[rows])


def matching(rows: NDArray[np.int64], keys: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: the first row with each key that is asked for; UNKNOWN: none has it, or it is UNKNOWN itself."""
    if not len(rows):
        return np.full(len(asked), UNKNOWN, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    found = rows[order[at]]
    return np.where((keys[order[at]] == asked) & (asked != UNKNOWN), found, UNKNOWN)
