from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dpdoctor.attribution.bandwidth import MAX_SIZES, collective_sizes, small_calls
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import WITH_COLLECTIVES, Kineto, Observed, real


def metadata(name: str, nelems: int, group_size: int = 8, group: str = "0") -> dict[str, Any]:
    return {
        "Collective name": name,
        "dtype": "Float",
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": group_size,
        "Process Group Name": group,
    }


def test_bandwidths_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    for begin, duration in ((0, 100), (1000, 300), (2000, 200)):
        kineto.kernel(
            "ncclDevKernel_AllReduce", begin, begin + duration, called=begin, **metadata("allreduce", 500_000)
        )
    kineto.kernel("gemm", 1100, 1150, called=1100)
    (size,) = collective_sizes(kineto.observe(tmp_path).found)
    assert (size.operation, size.group, size.group_size, size.num_bytes) == ("all_reduce", "0", 8, 2_000_000)
    assert (size.count, size.total_ns, size.exposed_ns) == (3, 600_000, 550_000)
    assert (size.median_ns, size.min_ns) == (200_000, 100_000)
    assert size.algbw_gb_s == pytest.approx(10.0)  # 2 MB in 200 µs
    assert size.busbw_gb_s == pytest.approx(10.0 * 2 * 7 / 8)


def test_each_operation_group_and_size_is_an_entry_and_the_longest_is_first(tmp_path: Path) -> None:
    kineto = Kineto()
    calls = [("allreduce", 8, "0"), ("allreduce", 16, "0"), ("broadcast", 8, "0"), ("allreduce", 8, "1")]
    for index, (name, nelems, group) in enumerate(calls):
        begin = 1000 * index
        kineto.kernel("ncclDevKernel", begin, begin + 10 + index, called=begin, **metadata(name, nelems, group=group))
    sizes = collective_sizes(kineto.observe(tmp_path).found)
    assert [(size.operation, size.num_bytes, size.group) for size in sizes] == [
        ("all_reduce", 32, "1"),
        ("broadcast", 32, "0"),
        ("all_reduce", 64, "0"),
        ("all_reduce", 32, "0"),
    ]


def test_without_size_there_is_no_bandwidth(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 0, 10, called=0)
    (size,) = collective_sizes(kineto.observe(tmp_path).found)
    assert (size.group_size, size.num_bytes, size.algbw_gb_s, size.busbw_gb_s) == (None, None, None, None)


def test_calls_of_no_duration_have_no_bandwidth(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("ncclDevKernel", 0, 0, called=0, **metadata("allreduce", 8))
    assert collective_sizes(kineto.observe(tmp_path).found)[0].algbw_gb_s is None


def test_sizes_without_number_do_not_fill_the_digest(tmp_path: Path) -> None:
    kineto = Kineto()
    for nelems in range(1, MAX_SIZES + 101):
        begin = 1000 * nelems
        kineto.kernel("ncclDevKernel", begin, begin + nelems, called=begin, **metadata("all_to_allv", nelems))
    sizes = collective_sizes(kineto.observe(tmp_path).found)
    assert len(sizes) == MAX_SIZES + 1
    assert sum(size.count for size in sizes) == MAX_SIZES + 100
    (rest,) = (size for size in sizes if size.num_bytes is None)
    assert (rest.operation, rest.group, rest.group_size, rest.count) == ("all_to_all", "", None, 100)
    assert rest.total_ns == sum(range(1, 101)) * 1000  # the shortest ones


@needs_real_traces
@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_figures_of_real_traces_are_what_a_plain_loop_finds(name: str) -> None:
    observed = real(name)
    sizes = collective_sizes(observed.found)
    assert sum(size.count for size in sizes) == len(observed.found)
    for size in sizes:
        durations = _durations(observed, (size.operation, size.group, size.group_size or -1, size.num_bytes or -1))
        assert (size.count, size.total_ns, size.min_ns) == (len(durations), sum(durations), min(durations))
        assert size.median_ns == int(median(durations))
        if size.algbw_gb_s is not None and size.num_bytes is not None:
            assert size.algbw_gb_s == pytest.approx(size.num_bytes / 1e9 / (size.median_ns / 1e9))


def _durations(observed: Observed, key: tuple[str, str, int, int]) -> list[int]:
    found = observed.found
    columns = (found.operations, found.groups, found.group_size.tolist(), found.num_bytes.tolist())
    keys = zip(*columns, strict=True)
    times = zip(found.begin_ns.tolist(), found.end_ns.tolist(), strict=True)
    return [end - begin for this, (begin, end) in zip(keys, times, strict=True) if this == key]


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
