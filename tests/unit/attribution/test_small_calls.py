from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpdoctor.attribution.bandwidth import small_calls
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import Kineto, real

LATENCY_US = 40
BYTES_PER_US = 100_000  # 100 GB/s
SIZES = (4_000, 400_000, 1_200_000, 40_000_000, 400_000_000)


def written(sizes: tuple[int, ...], calls: int = 3, waits_us: tuple[float, ...] = (0, 500, 70)) -> Kineto:
    """Return calls that take the latency and the transfer and, most of them, a wait."""
    kineto, begin = Kineto(), 0.0
    for size in sizes:
        for number in range(calls):
            metadata: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Byte", "In msg nelems": size}
            duration = LATENCY_US + size / BYTES_PER_US + waits_us[number % len(waits_us)]
            kineto.kernel("ncclDevKernel_AllReduce", begin, begin + duration, called=begin, **metadata)
            begin += duration + 10
    return kineto


def test_latency_and_bandwidth_come_back(tmp_path: Path) -> None:
    (found,) = small_calls(written(SIZES).observe(tmp_path).found)
    assert found.operation == "all_reduce"
    assert found.latency_ns == pytest.approx(LATENCY_US * 1000, rel=0.001)
    assert found.bandwidth_gb_s == pytest.approx(100, rel=0.001)
    assert found.limit_bytes == pytest.approx(LATENCY_US * BYTES_PER_US / 4, rel=0.001)  # 1 MB
    assert (found.count, found.small_count) == (15, 6)
    small_us = sum(3 * (LATENCY_US + size / BYTES_PER_US) + 570 for size in SIZES[:2])
    assert found.small_total_ns == found.small_exposed_ns == pytest.approx(small_us * 1000)


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        (SIZES[:2], 3),  # too few sizes
        ((1_000_000, 1_100_000, 1_200_000), 3),  # too much alike
        (SIZES, 2),  # any of them may have waited
    ],
)
def test_too_little_is_not_judged(tmp_path: Path, sizes: tuple[int, ...], calls: int) -> None:
    assert small_calls(written(sizes, calls).observe(tmp_path).found) == ()


@pytest.mark.parametrize("duration_us", [(50, 50, 40), (10, 500, 20)])
def test_times_that_do_not_follow_the_size_are_not_judged(tmp_path: Path, duration_us: tuple[int, ...]) -> None:
    kineto = Kineto()
    for number in range(9):
        metadata = {"Collective name": "allreduce", "dtype": "Byte", "In msg nelems": SIZES[1 + number // 3]}
        begin = 1000 * number
        kineto.kernel("ncclDevKernel", begin, begin + duration_us[number // 3], called=begin, **metadata)
    assert small_calls(kineto.observe(tmp_path).found) == ()


def test_calls_of_unknown_size_are_not_judged(tmp_path: Path) -> None:
    kineto = Kineto()
    for begin in range(20):
        kineto.kernel("ncclKernel_AllReduce_RING_LL", 10 * begin, 10 * begin + 5, called=10 * begin)
    assert small_calls(kineto.observe(tmp_path).found) == ()


@needs_real_traces
def test_real_calls_of_one_or_two_per_size_are_not_judged() -> None:
    assert small_calls(real("two_ranks_of_128/rank-0.json.gz").found) == ()
