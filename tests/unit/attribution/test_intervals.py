"""The algebra of intervals is that of a grid with one bool per tick."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdoctor.attribution.intervals import (
    Spans,
    clip,
    complement,
    contains,
    exclusive,
    intersect,
    length,
    lengths_within,
    merge,
    pieces,
    subtract,
)

TICKS = 32
CASES = 2000


def spans(pairs: Iterable[tuple[int, int]]) -> Spans:
    return np.array(list(pairs), np.int64).reshape(-1, 2)


def random_spans(rng: np.random.Generator) -> Spans:
    """Return up to 8 spans, in any order, so short and close that many touch, nest, are alike or are empty."""
    begin = rng.integers(0, TICKS - 8, rng.integers(0, 9))
    return np.stack((begin, begin + rng.integers(0, 9, len(begin))), axis=1)


def grid(set_of_spans: Spans) -> NDArray[np.bool_]:
    ticks = np.zeros(TICKS, bool)
    for begin, end in np.clip(set_of_spans, 0, TICKS).tolist():
        ticks[begin:end] = True
    return ticks


def same(found: Spans, expected: NDArray[np.bool_]) -> bool:
    """Whether a set is sorted, disjoint, without touching or empty spans, and covers what is expected."""
    edges = found.ravel()
    return bool((edges[1:] > edges[:-1]).all()) and bool((grid(found) == expected).all())


def assert_equals_the_grid(one: Spans, two: Spans, three: Spans) -> None:
    left, right = merge(one), merge(two)
    first, second, third = grid(one), grid(two), grid(three)
    assert same(left, first)
    assert same(merge(one, two, three), first | second | third)
    assert same(intersect(left, right), first & second)
    assert same(subtract(left, right), first & ~second)
    assert same(clip(complement(left), 0, TICKS), ~first)
    of, parts_of = pieces(one, right)
    for number, span in enumerate(one):
        assert (grid(parts_of[of == number]) == grid(span[None]) & second).all()
    assert length(left) == first.sum()
    assert lengths_within(left, two).tolist() == [first[begin:end].sum() for begin, end in two.tolist()]
    assert (contains(left, np.arange(TICKS)) == first).all()
    parts = exclusive([left, right, merge(three)])
    assert same(parts[0], first)
    assert same(parts[1], second & ~first)
    assert same(parts[2], third & ~second & ~first)


def test_the_algebra_equals_a_grid() -> None:
    rng = np.random.default_rng(0)
    for _ in range(CASES):
        assert_equals_the_grid(random_spans(rng), random_spans(rng), random_spans(rng))


def test_times_of_today_are_exact() -> None:
    # Nanoseconds of unix time: a float would round them to 256 ns.
    now = 1_790_000_000_000_000_123
    busy = merge(spans([(now, now + 5), (now + 7, now + 8)]))
    assert length(busy) == 6
    assert lengths_within(busy, spans([(now + 4, now + 8)])).tolist() == [2]


@pytest.mark.parametrize("pairs", [[], [(3, 3)]])
def test_nothing_is_a_set(pairs: list[tuple[int, int]]) -> None:
    nothing = merge(spans(pairs))
    assert nothing.shape == (0, 2)
    assert length(nothing) == 0
    assert lengths_within(nothing, spans([(0, 5)])).tolist() == [0]
    assert not contains(nothing, np.arange(3)).any()
    assert intersect(nothing, spans([(0, 5)])).shape == (0, 2)
