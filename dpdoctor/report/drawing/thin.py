"""Fewer points for a curve without losing its extremes."""

from __future__ import annotations

from collections.abc import Sequence


def thin(values: Sequence[float | None], most: int) -> list[int]:
    """Return the indices of about `most` points, in order: of each run of neighbours the lowest and the highest.

    First and last stay, and one gap (None) of each run, so a hole in the data stays a hole in the picture.
    """
    if len(values) <= most:
        return list(range(len(values)))
    size = neighbours(len(values), most)
    kept = {0, len(values) - 1}
    for begin in range(0, len(values), size):
        kept.update(_extremes(values, range(begin, min(begin + size, len(values)))))
    return sorted(kept)


def neighbours(num_values: int, most: int) -> int:
    """Return how many neighbouring values share one pair of points when `num_values` are thinned to `most`."""
    return max(1, -(-2 * num_values // most))


def _extremes(values: Sequence[float | None], indices: range) -> set[int]:
    known = [(value, index) for index in indices if (value := values[index]) is not None]
    kept = {min(known)[1], max(known)[1]} if known else set()
    gap = next((index for index in indices if values[index] is None), None)
    return kept if gap is None else kept | {gap}
