"""Where the elements of a JSON array begin and end, found without decoding them. For slices that are hard to cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEP = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1
_IS_STRUCTURE = _STEP != 0
_IS_STRUCTURE[ord(",")] = True


def elements(text: bytes) -> tuple[NDArray[np.int64], int | None]:
    """Return the offsets of the commas between elements, and of the bracket that closes the array (None: not there).

    `text` starts inside of the array, outside of every element.
    """
    data = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(_IS_STRUCTURE[data])
    at = at[np.searchsorted(_quotes(data), at) % 2 == 0]
    step = _STEP[data[at]]
    depth = np.cumsum(step, dtype=np.int64)
    closed = np.flatnonzero(depth < 0)
    num = int(closed[0]) if len(closed) else len(at)
    commas = at[:num][(step[:num] == 0) & (depth[:num] == 0)]
    return commas, int(at[num]) if len(closed) else None


def _quotes(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the offsets of the quotes that begin or end a string: those after an even number of backslashes."""
    quotes = np.flatnonzero(data == ord('"'))
    slashes = np.flatnonzero(data == ord("\\"))
    if not len(slashes):
        return quotes
    begins = np.concatenate(([True], np.diff(slashes) > 1))
    run_begin = np.maximum.accumulate(np.where(begins, slashes, 0))
    last = np.maximum(np.searchsorted(slashes, quotes) - 1, 0)  # the slash before each quote
    is_next = slashes[last] == quotes - 1
    run = np.where(is_next, quotes - run_begin[last], 0)
    return np.compress(run % 2 == 0, quotes)
