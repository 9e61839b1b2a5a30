"""The distribution of fetches, process by process."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dpdoctor.report.drawing.loader_charts import MOST_BOXES, MOST_POINTS, fetch_boxes
from tests.builders.figures import figures

# 1–101 ms: the quantiles are round.
FETCHES = [ms / 1000 for ms in range(1, 102)]


def test_a_box_per_process_with_its_quantiles_and_longest_fetches() -> None:
    chart = fetch_boxes({(0, 1): FETCHES, (0, 0): [2 * seconds for seconds in FETCHES], (1, None): [0.05]})
    box, middles, longest = chart.traces
    assert chart.layout["yaxis"]["ticktext"] == ["rank 0, worker 0", "rank 0, worker 1", "rank 1, training thread"]
    assert [box[name][1] for name in ("lowerfence", "q1", "median", "q3", "upperfence")] == pytest.approx(
        [6, 26, 51, 76, 96]
    )
    assert middles["x"] == pytest.approx([102, 51, 50])
    assert (longest["x"][:MOST_POINTS], longest["y"]) == (
        pytest.approx([202, 200, 198, 196, 194]),
        [0] * MOST_POINTS + [1] * MOST_POINTS,
    )
    said = chart.alternative.partition("rank 0, worker 1: ")[2]
    assert figures(said)[:6] == ["51.0 ms", "101", "26.0 ms", "76.0 ms", "6.00 ms", "96.0 ms"]


def many(num_ranks: int, num_workers: int) -> Mapping[tuple[int, int | None], list[float]]:
    return {(rank, worker): [0.1 + rank / 1000] for rank in range(num_ranks) for worker in range(num_workers)}


def test_many_processes_are_put_together_by_rank() -> None:
    chart = fetch_boxes(many(8, 8))
    assert chart.layout["yaxis"]["ticktext"] == [f"rank {rank}" for rank in range(8)]
    assert figures(chart.how_to_read) == ["5%", "95%", "64"]


def test_of_many_ranks_the_slowest_are_drawn_below_all_of_them() -> None:
    chart = fetch_boxes(many(MOST_BOXES + 8, 1))
    names = chart.layout["yaxis"]["ticktext"]
    assert names[:2] == ["all ranks", f"rank {MOST_BOXES + 7}"]
    assert len(names) == MOST_BOXES + 1
    # How many are drawn and of how many; no number of processes, as none are put together.
    assert figures(chart.how_to_read) == ["5%", "95%", str(MOST_BOXES), str(MOST_BOXES + 8)]
