"""The timeline of traced steps: what is drawn where, on one clock or aligned, told again from the digests."""

from __future__ import annotations

from msgspec.structs import fields, replace

from dpdoctor.analysis import Analysis
from dpdoctor.digest import HOST, HOST_PHASES, Digest, Lane, TracedStep
from dpdoctor.report.blocks import Absent, Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.views.traced_step import MOST_RANKS, NO_STEP
from tests.builders.sections import build, only
from tests.builders.specs import MS
from tests.builders.traced_runs import late_rank, trace_run

LANES = (
    Lane(device=HOST, what="forward", spans_ns=(0, 20 * MS)),
    Lane(device=HOST, what="other", spans_ns=(20 * MS, 100 * MS)),
    Lane(device=0, what="compute", spans_ns=(5 * MS, 15 * MS, 30 * MS, 60 * MS)),
    Lane(device=0, what="comm", spans_ns=(40 * MS, 90 * MS)),
)


def step(number: int, *, begin: int = 0, lasted: int = 100) -> TracedStep:
    return TracedStep(step=number, begin_ns=begin * MS, duration_ns=lasted * MS, finest_ns=0, lanes=LANES)


def traced(*kept: tuple[TracedStep, ...]) -> Analysis:
    """Return a run of as many ranks, on one clock, each of which kept these steps."""
    ranks = late_rank(max(2, len(kept)), 0)[: len(kept)]
    return trace_run(*(replace(rank, traced_steps=steps) for rank, steps in zip(ranks, kept, strict=True)))


def drawn(analysis: Analysis) -> Chart:
    (chart,) = only(Chart, build("traced_step", analysis))
    return chart


def bars(chart: Chart) -> set[tuple[str, str, float, float]]:
    """Return row, name, begin and length of all bars."""
    rows = chart.layout["yaxis"]["ticktext"]
    return {
        (rows[y], trace["name"], base, x)
        for trace in chart.traces
        for y, base, x in zip(trace["y"], trace["base"], trace["x"], strict=True)
    }


def test_every_span_is_a_bar_on_the_row_of_its_lane() -> None:
    assert bars(drawn(traced((step(4),)))) == {
        ("rank 0  host", "host: the forward pass", 0, 20),
        ("rank 0  host", "host: other code of the script", 20, 80),
        ("GPU compute", "compute", 5, 10),
        ("GPU compute", "compute", 30, 30),
        ("GPU communication", "communication", 40, 50),
    }


def test_ranks_on_one_clock_begin_where_they_began() -> None:
    chart = drawn(traced((step(4, begin=100),), (step(4, begin=107),)))
    begins = {row: base for row, name, base, _ in bars(chart) if name == "host: the forward pass"}
    # What the clocks of the two are apart was found from their calls; the rest is what was planted.
    assert abs(begins["rank 1  host"] - begins["rank 0  host"] - 7) < 0.01
    assert "on the first one's clock" in chart.how_to_read


def test_other_steps_are_aligned_at_their_begin_and_that_is_said() -> None:
    chart = drawn(traced((step(4, begin=100),), (step(5, begin=300),)))
    assert {base for _, name, base, _ in bars(chart) if name == "host: the forward pass"} == {0}
    assert "aligned at the begin" in chart.how_to_read


def test_the_step_that_most_ranks_kept_is_drawn() -> None:
    chart = drawn(traced((step(3), step(4)), (step(4, begin=1),), (step(4, begin=2), step(9))))
    assert chart.title == "Traced step 4"


def test_a_legend_of_many_names_takes_no_room_from_the_rows() -> None:
    few, many = drawn(traced((step(4),))), tuple(Lane(device=HOST, what=what, spans_ns=(0, MS)) for what in HOST_PHASES)
    more = drawn(traced((replace(step(4), lanes=(*LANES, *many)),)))
    names = [len({trace["name"] for trace in chart.traces}) for chart in (few, more)]
    lines = [-(-number // charts.LEGEND_NAMES) for number in names]
    rows = [len(chart.layout["yaxis"]["ticktext"]) for chart in (few, more)]
    assert rows[0] == rows[1]
    assert more.height - few.height == (lines[1] - lines[0]) * charts.LEGEND_LINE_PX > 0


def test_of_many_ranks_the_longest_are_drawn() -> None:
    kept = [(step(4, lasted=100 + number),) for number in range(20)]
    chart = drawn(traced(*kept))
    hosts = [row for row in chart.layout["yaxis"]["ticktext"] if row.endswith("host")]
    assert hosts == [f"rank {number}  host" for number in range(20 - MOST_RANKS, 20)]
    assert f"the {MOST_RANKS} longest of 20 ranks" in chart.how_to_read


def test_the_words_have_the_times_of_the_lanes() -> None:
    assert "compute (GPU 0) 40.0 ms, communication (GPU 0) 50.0 ms" in drawn(traced((step(4),))).alternative


def test_without_a_whole_step_it_is_said() -> None:
    blocks = build("traced_step", traced(()))
    assert only(Absent, blocks) == [Absent(what="Timeline", reason=NO_STEP)]


def test_a_digest_of_before_has_none() -> None:
    defaults = {field.name: field.default for field in fields(Digest)}
    assert defaults["traced_steps"] == ()


def test_the_hosts_copies_are_not_the_devices() -> None:
    """The training thread has a phase of the same name."""
    both = (Lane(device=HOST, what="h2d", spans_ns=(0, 3 * MS)), Lane(device=0, what="h2d", spans_ns=(4 * MS, 9 * MS)))
    chart = drawn(traced((replace(step(4), lanes=(*LANES, *both)),)))
    copies = [(row, begin, lasted) for row, name, begin, lasted in bars(chart) if "cop" in name]
    assert sorted(copies) == [("GPU copies", 4, 5), ("rank 0  host", 0, 3)]


def test_on_the_cpu_copies_are_the_hosts_alone() -> None:
    lanes = (Lane(device=HOST, what="h2d", spans_ns=(0, 3)), Lane(device=HOST, what="compute", spans_ns=(3, 9)))
    chart = drawn(traced((replace(step(4), lanes=lanes),)))
    assert chart.layout["yaxis"]["ticktext"] == ["rank 0  host", "CPU compute"]
