from __future__ import annotations

import pytest

from dpdoctor.analysis.jitter import jitter_wait
from dpdoctor.records import Launch, Rank
from tests.builders import records


def alone(*ms: list[float], rounds: int = 3) -> Launch:
    """Return a rank for each list of step times without communication; a full step lasts 100 ms."""
    return records.launch(*(_rank(index, times, rounds) for index, times in enumerate(ms)))


def _rank(index: int, times: list[float], rounds: int) -> Rank:
    steps, windows = [], []
    for number in range(2 * rounds):
        own = times if number % 2 else [100.0] * len(times)
        steps += [records.step(ms, step=len(steps) + place, window=number) for place, ms in enumerate(own)]
        ablation = "no_comm" if number % 2 else "full"
        windows.append(records.window(sum(own), window=number, ablation=ablation, round=number // 2))
    return records.rank(steps, windows, index=index, world_size=2)


def test_ranks_that_are_late_in_turns_lose_what_each_waits_for_the_other() -> None:
    # Steps of max(50, 70) = 70 ms throughout, where each rank takes 60 ms in the mean.
    found = jitter_wait([alone([50, 70, 50, 70], [70, 50, 70, 50])], "no_comm")
    assert (found.value, found.n) == (pytest.approx(0.1), 3)


@pytest.mark.parametrize("ms", [([60] * 4, [60] * 4), ([50] * 4, [90] * 4), ([50, 70, 50, 70], [60, 80, 60, 80])])
def test_a_rank_that_is_always_last_or_slow_steps_of_all_are_no_turns(ms: tuple[list[float], ...]) -> None:
    assert jitter_wait([alone(*ms)], "no_comm").value == pytest.approx(0)


def test_one_rank_or_no_such_window_tells_nothing() -> None:
    assert jitter_wait([alone([50, 70, 50])], "no_comm").value is None
    assert "cached_batches" in (jitter_wait([alone([50, 70], [70, 50])], "cached_batches").reason or "")
