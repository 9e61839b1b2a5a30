"""The sections that show traces; that every section can show every run is tested in test_sections."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, Figure
from dpdoctor.digest import Bucket, NamedTime, NotMeasured, SmallCalls
from dpdoctor.report import page
from dpdoctor.report.blocks import Absent, Callout, Cell, Limits, OfMode, Paragraph, Table
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.text import clipped, name_cell
from dpdoctor.report.traces.words import stragglers
from dpdoctor.report.views import collectives, environment, parallel
from dpdoctor.report.views.collectives import BY_SIZE, HOW_TO_READ_LINES, NO_FIT, ONE_SIZE
from dpdoctor.report.views.ranks import LATE_TITLES
from dpdoctor.report.words import standing
from tests.builders import runs, traced_runs
from tests.builders.figures import figures
from tests.builders.html import elements
from tests.builders.sections import VIEWS, applying, build, charts, only
from tests.builders.specs import MS
from tests.builders.terminal import shown


def tables(name: str, analysis: Analysis) -> dict[str, Table]:
    """Return the tables of a section by the first words of their captions."""
    return {block.caption.split()[0]: block for block in only(Table, build(name, analysis))}


def texts(row: tuple[Cell, ...]) -> list[str]:
    return [cell.text for cell in row]


class TestWhichSections:
    def test_traces_alone_have_no_sections_of_what_was_not_measured(self) -> None:
        assert set(applying(traced_runs.late_run())) == {
            "traces",
            "findings",
            "breakdown",
            "traced_step",
            "collectives",
            "parallel",
            "ranks",
            "kernels",
            "peak-memory",
            "environment",
        }

    def test_that_is_said_once_and_the_machine_is_the_readers(self) -> None:
        blocks = build("environment", traced_runs.late_run())
        assert only(Absent, blocks)[-1] == environment.NOT_MEASURED
        assert environment.READER in blocks

    def test_a_profile_run_without_traces_says_so_once(self) -> None:
        assert {"collectives", "parallel", "ranks", "kernels"} & set(applying(runs.gpu_run())) == set()
        assert (
            only(Absent, build("breakdown", runs.gpu_run()))
            == [Absent(what="Device time", reason="no trace was recorded")] * 2
        )

    def test_a_profile_run_is_told_by_mode(self) -> None:
        run = traced_runs.traced_profile()
        blocks = VIEWS["breakdown"].build(run)
        assert [block.mode for block in blocks if isinstance(block, OfMode)] == ["ddp", "single", "fsdp"]
        untraced, failed = (only(Absent, block.blocks)[0] for block in blocks[1:] if isinstance(block, OfMode))
        assert "trace" in untraced.reason
        assert failed.reason == standing.withheld_briefly(run.summary.modes["fsdp"])


class TestTraces:
    def test_the_table_of_what_was_read(self) -> None:
        row = tables("traces", traced_runs.late_run())["What"].rows[2]
        assert texts(row) == [
            "rank 2",
            "GPU 0: NVIDIA H100",
            "node<b>7</b>",
            "nccl",
            "4",
            "20",
            "ProfilerStep",
            "2.json",
        ]

    def test_damage_notes_and_errors_are_called_out(self) -> None:
        found = only(Callout, build("traces", traced_runs.cpu_trace()))
        assert [callout.tone for callout in found] == ["bad", "warn", "muted"]
        assert [figures(callout.title) for callout in found] == [["1"], ["34"], ["34"]]
        assert [callout.title.startswith("rank 34") for callout in found] == [False, True, True]
        assert found[0].lines == ("/data/traces/rank7.json: not JSON",)


class TestTimeBudget:
    @pytest.mark.parametrize(
        ("traced", "told"),
        [
            (
                1.3,
                ". A traced step takes 130% of an untraced one here. The profiler slows such a step, the host's part",
            ),
            (0.6, ". A traced step takes 60% of an untraced one here. Take durations"),
            (None, ". The profiler slows such a step, the host's part most. Take durations"),
        ],
    )
    def test_what_the_profiler_took_is_no_loss_where_traced_steps_were_shorter(
        self, traced: float | None, told: str
    ) -> None:
        run = traced_runs.traced_profile()
        mode = run.summary.modes["ddp"]
        cost = Figure(value=traced, unit="ratio", n=1, reason=None if traced else "none was measured")
        summary = replace(run.summary, modes={**run.summary.modes, "ddp": replace(mode, profiler_overhead=cost)})
        (ddp,) = [block for block in build("breakdown", replace(run, summary=summary)) if isinstance(block, OfMode)][:1]
        assert any(told in text.text for text in only(Paragraph, ddp.blocks))

    def test_the_bars_add_up_to_the_whole(self) -> None:
        chart = charts("breakdown", traced_runs.late_run())["The time of each device"]
        assert [trace["x"][0] for trace in chart.traces] == [46, 31, 4, 1, 18]
        assert chart.layout["yaxis"]["ticktext"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
        assert chart.alternative.startswith("rank 0: compute 46%")
        assert figures(chart.alternative)[:6] == ["0", "46%", "31%", "4.0%", "1.0%", "18%"]

    def test_of_many_devices_those_that_compute_least_come_first(self) -> None:
        (digest,) = traced_runs.late_rank(1, 0)
        many = [
            replace(
                digest, rank=rank, devices=(traced_runs.device(of=traced_runs.breakdown(compute=200 + rank, idle=100)),)
            )
            for rank in range(130)
        ]
        blocks = build("breakdown", traced_runs.trace_run(*many))
        (table,) = only(Table, blocks)
        assert [row[0].text for row in table.rows] == [f"rank {rank}" for rank in range(128)]
        assert ["128", "130"] in [figures(block.text) for block in only(Paragraph, blocks)]

    def test_idle_is_split_by_cause(self) -> None:
        chart = charts("breakdown", traced_runs.late_run())["Idle, by what the host did meanwhile"]
        assert [(trace["name"], trace["x"][0]) for trace in chart.traces] == [
            ("waiting for data", 13.5),
            ("launching operators", 4.5),
        ]

    def test_more_causes_than_colours_are_added_up(self) -> None:
        causes = ("data", "sync", "allocator", "gc", "optimizer", "dispatch", "python", "annotation")
        idle_by = {cause: (20 - place) * MS for place, cause in enumerate(causes)}
        of = traced_runs.breakdown(0, idle=sum(idle_by.values()) // MS)
        device = replace(traced_runs.device(steps=0, of=of), idle_by=idle_by)
        run = traced_runs.trace_run(replace(traced_runs.late_rank(1, 0)[0], devices=(device,)))
        chart = charts("breakdown", run)["Idle, by what the host did meanwhile"]
        assert [trace["name"] for trace in chart.traces][-2:] == ["launching operators", "other causes"]
        assert sum(trace["x"][0] for trace in chart.traces) == pytest.approx(100, abs=1e-3)

    def test_the_table(self) -> None:
        (table,) = tables("breakdown", traced_runs.late_run()).values()
        assert table.rows[0] == (
            Cell(text="rank 0", note="NVIDIA H100"),
            Cell(text="100 ms", note="mean of 3 steps"),
            *(Cell(text=text) for text in ("46%", "31%", "4.0%", "1.0%", "18%", "50%")),
            Cell(text="8.00 µs", note="90% within 2.00 ms"),
            Cell(text="300"),
        )

    def test_a_cpu_has_no_launches(self) -> None:
        (table,) = tables("breakdown", traced_runs.cpu_trace()).values()
        assert table.rows[0][1] == Cell(text="100 ms", note="the whole trace")
        assert texts(table.rows[0])[-2:] == ["—", "—"]

    def test_of_a_profile_run_it_is_said_which_figures_are_the_traces(self) -> None:
        said = only(Paragraph, build("breakdown", traced_runs.traced_profile()))
        assert "profiler" in said[0].text
        assert not any(
            "profiler" in block.text for block in only(Paragraph, build("breakdown", traced_runs.late_run()))
        )

    def test_what_only_some_traces_cannot_tell_names_them(self) -> None:
        first, second = traced_runs.late_rank(2, 1)
        blind = replace(second, not_measured=(NotMeasured(what="steps", reason="no spans"),))
        found = only(Absent, build("breakdown", traced_runs.trace_run(first, blind)))
        assert found == [Absent(what="Steps", reason="no spans (rank 1)")]


class TestCollectives:
    def test_sizes_are_means_over_ranks(self) -> None:
        (row,) = tables("collectives", traced_runs.late_run())["Collectives"].rows
        found = ["all_reduce", "25.0 MB", "4", "4.00", "40.0 ms", "50%", "10.0 ms", "2.50 GB/s", "3.75 GB/s"]
        assert texts(row) == found

    def test_duration_and_bandwidth_are_of_one_rank(self) -> None:
        made = [
            replace(digest, collectives=(traced_runs.size(median_ns=ms * MS, algbw_gb_s=bandwidth),))
            for digest, ms, bandwidth in zip(traced_runs.late_rank(3, 0), (30, 10, 20), (1.0, 3.0, 1.5), strict=True)
        ]
        (row,) = tables("collectives", traced_runs.trace_run(*made))["Collectives"].rows
        assert texts(row)[6:8] == ["20.0 ms", "1.50 GB/s"]

    def test_an_unknown_size_has_no_bandwidth(self) -> None:
        row = tables("collectives", traced_runs.hostile_traces())["Collectives"].rows[1]
        assert {row[place].text for place in (1, -2, -1)} == {"unknown"}
        assert {row[place].footnote for place in (1, -2, -1)} == {collectives.NO_SIZE}

    def test_calls_too_small_to_matter(self) -> None:
        (row,) = tables("collectives", traced_runs.hostile_traces())["Calls"].rows
        assert (row[2].text, figures(row[2].note)) == ("80", ["100"])
        assert texts(row)[1] == "94.0 kB"

    def test_without_any_the_reason_is_given(self) -> None:
        digest = replace(traced_runs.late_rank(1, 0)[0], collectives=())
        (found,) = build("collectives", traced_runs.trace_run(digest))
        assert found == Absent(what="Collectives", reason="one process calls no collective")


class TestBandwidthBySize:
    # 10 µs + size / 1 GB/s: the shortest calls; the median ones take twice as long.
    SIZES = tuple(
        traced_runs.size(num_bytes=size, median_ns=2 * (10_000 + size), min_ns=10_000 + size)
        for size in (10_000, 90_000, 990_000)
    )
    FIT = SmallCalls(
        operation="all_reduce",
        group="0",
        latency_ns=10_000,
        bandwidth_gb_s=1.0,
        limit_bytes=2_500,
        count=12,
        small_count=0,
        small_total_ns=0,
        small_exposed_ns=0,
    )

    def run(self, **fields: object) -> Analysis:
        (digest,) = traced_runs.late_rank(1, 0)
        return traced_runs.trace_run(replace(digest, **{"collectives": self.SIZES, **fields}))

    def test_measured_points_and_the_fitted_line_with_its_limit(self) -> None:
        chart = charts("collectives", self.run(small_calls=(self.FIT,)))["Bandwidth by size"]
        usual, best, fit, limit = chart.traces
        assert usual["x"] == best["x"] == [10_000, 90_000, 990_000]
        assert usual["y"] == pytest.approx([2.5e8, 4.5e8, 4.95e8])
        assert best["y"] == pytest.approx([5e8, 9e8, 9.9e8])
        assert (fit["y"][0], fit["y"][-1]) == (pytest.approx(5e8), pytest.approx(9.9e8))
        assert (limit["x"], limit["y"]) == ([10_000, 990_000], [1e9, 1e9])
        assert figures(chart.alternative)[-3:] == ["0", "10.0 µs", "1.00 GB/s"]
        assert chart.how_to_read == HOW_TO_READ_LINES

    def test_without_a_fit_the_reason_is_given(self) -> None:
        blocks = build("collectives", self.run())
        assert len(charts("collectives", self.run())["Bandwidth by size"].traces) == 2
        (found,) = only(Absent, blocks)
        assert found.what.endswith("all_reduce, 4 ranks")
        assert found.reason == NO_FIT

    def test_one_size_is_no_curve(self) -> None:
        assert only(Absent, build("collectives", self.run(collectives=self.SIZES[:1]))) == [
            Absent(what=BY_SIZE, reason=ONE_SIZE)
        ]

    def test_of_several_ranks_the_middle_fit_is_drawn(self) -> None:
        digests = [
            replace(digest, collectives=self.SIZES, small_calls=(replace(self.FIT, bandwidth_gb_s=bandwidth),))
            for digest, bandwidth in zip(traced_runs.late_rank(3, 0), (3.0, 1.0, 2.0), strict=True)
        ]
        chart = charts("collectives", traced_runs.trace_run(*digests))["Bandwidth by size"]
        assert figures(chart.alternative)[-3:] == ["2", "10.0 µs", "2.00 GB/s"]

    def test_of_many_sizes_those_that_took_longest_are_drawn(self) -> None:
        many = tuple(traced_runs.size(num_bytes=1000 + i, total_ns=1000 + i) for i in range(50))
        chart = charts("collectives", self.run(collectives=many))["Bandwidth by size"]
        assert chart.traces[0]["x"] == [*range(1010, 1050)]
        assert figures(chart.how_to_read) == ["40"]


class TestParallel:
    def test_buckets_with_their_tail(self) -> None:
        run = traced_runs.trace_run(traced_runs.everything())
        chart = charts("parallel", run)["Gradient buckets of rank 0"]
        ready, during, tail = (trace["x"] for trace in chart.traces)
        assert (ready, during, tail) == ([10, 30], [10, 10], [0, 5])
        assert texts(tables("parallel", run)["Buckets"].rows[1]) == [
            "1",
            "unknown",
            "30.0 ms",
            "45.0 ms",
            "5.00 ms",
            "5.00 ms",
        ]

    def test_a_bucket_that_is_ready_after_backward_is_all_tail(self) -> None:
        late = Bucket(order=0, num_bytes=None, ready_ns=30 * MS, end_ns=45 * MS, exposed_ns=15 * MS, tail_ns=20 * MS)
        run = traced_runs.trace_run(replace(traced_runs.everything(), buckets=(late,)))
        ready, during, tail = (trace["x"] for trace in charts("parallel", run)["Gradient buckets of rank 0"].traces)
        assert (ready, during, tail) == ([30], [0], [15])

    def test_units_of_fsdp(self) -> None:
        (row,) = tables("parallel", traced_runs.trace_run(traced_runs.everything()))["Units"].rows
        assert row[0].full == traced_runs.HOSTILE[2]
        assert texts(row)[1:] == ["2.00", "3.00 MB", "1.00", "unknown", "2.50 ms", "50%"]

    def test_the_excess_of_the_first_device_under_data_parallel(self) -> None:
        rows = tables("parallel", traced_runs.trace_run(traced_runs.everything()))["nn.DataParallel"].rows
        assert [texts(row)[0] for row in rows] == ["host", "GPU 0", "GPU 1"]
        assert [texts(row)[-1] for row in rows] == ["—", "30.0 ms", "-30.0 ms"]

    def test_the_units_are_drawn_by_what_of_them_is_exposed(self) -> None:
        units = tuple(
            replace(traced_runs.everything().shard_units[0], name=n, exposed_ns=t * 1e6)
            for n, t in (("a", 1), ("b", 3))
        )
        chart = charts("parallel", traced_runs.trace_run(replace(traced_runs.everything(), shard_units=units)))[
            "Units of FSDP on rank 0"
        ]
        assert (chart.layout["yaxis"]["ticktext"], chart.traces[0]["x"]) == (["b", "a"], [3, 1])
        assert chart.alternative.startswith("b: ")
        assert figures(chart.alternative) == ["3.00 ms", "50%", "1.00 ms", "50%"]

    def test_the_devices_of_data_parallel_are_drawn_by_what_launched_their_work(self) -> None:
        chart = charts("parallel", traced_runs.trace_run(traced_runs.everything()))[
            "Devices of nn.DataParallel on rank 0"
        ]
        bars = {trace["name"]: trace["x"] for trace in chart.traces}
        assert bars["replicate"] == [4, 0]
        assert bars["backward, loss and update"] == [30, 30]

    def test_what_none_of_them_did_is_said(self) -> None:
        (found,) = build("parallel", traced_runs.late_run())
        assert isinstance(found, Absent)
        assert found.reason == parallel.NOTHING_FOUND


class TestRanks:
    def test_the_verdict_and_what_it_rests_on(self) -> None:
        (found,) = only(Callout, build("ranks", traced_runs.late_run()))
        assert (found.title, found.tone) == (LATE_TITLES["persistent"], "warn")
        assert figures(found.text) == ["2", "30.0 ms", "19", "19"]

    def test_where_nobody_was_late_that_is_said(self) -> None:
        (found,) = only(Callout, build("ranks", traced_runs.trace_run(*traced_runs.late_rank(late=None))))
        assert (found.title, found.tone) == (LATE_TITLES["none"], "good")
        assert found.text.endswith("Nobody was late in 19 judged steps.")

    def test_the_map_has_a_row_per_rank_and_a_column_per_step(self) -> None:
        chart = charts("ranks", traced_runs.late_run())["Lateness by rank and step"]
        (trace,) = chart.traces
        assert trace["y"] == [f"rank {number}" for number in range(4)]
        assert [row[0] for row in trace["z"]] == [0, 0, 30, 0]
        assert (trace["zmin"], trace["zmax"], len(trace["x"])) == (-30, 30, 19)
        assert trace["colorbar"]["tickvals"] == [-30, 0, 30]
        assert trace["colorbar"]["ticktext"] == ["-30.0 ms", "0 ms", "30.0 ms"]
        assert chart.alternative.endswith("by 30.0 ms.")

    def test_of_many_steps_the_latest_of_neighbours_is_drawn(self) -> None:
        run = traced_runs.trace_run(*traced_runs.late_rank(2, 1, num_steps=501))
        chart = charts("ranks", run)["Lateness by rank and step"]
        assert len(chart.traces[0]["x"]) == 167
        assert "Of each 3 neighbouring steps" in chart.how_to_read

    def test_the_latest_rank_comes_first_and_the_others_wait(self) -> None:
        rows = tables("ranks", traced_runs.late_run())["Ranks,"].rows
        assert texts(rows[0]) == ["rank 2", "30.0 ms", "30.0 ms", "0 s"]
        assert texts(rows[1])[3] == "30.0 ms"

    def test_missing_ranks_are_listed(self) -> None:
        run = traced_runs.trace_run(*traced_runs.late_rank()[:2])
        assert (["2"], ["2", "3"]) in [
            (figures(block.what), figures(block.reason)) for block in only(Absent, build("ranks", run))
        ]

    def test_a_refused_group_says_why_and_notes_are_shown(self) -> None:
        run = traced_runs.hostile_traces()
        (cross_rank,) = run.cross_rank.values()
        reason = cross_rank.groups[0].reason
        assert reason
        assert reason in tables("ranks", run)["Process"].rows[0][-1].text
        assert cross_rank.notes[-1] in only(Callout, build("ranks", run))[-1].text

    def test_groups_of_one_name_are_told_apart(self) -> None:
        members = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
        digests = [replace(one, group_ranks={"0": members[one.rank or 0]}) for one in traced_runs.late_rank(4)]
        rows = tables("ranks", traced_runs.trace_run(*digests))["Process"].rows
        assert [row[0].note for row in rows] == ["ranks 0, 1", "ranks 2, 3"]

    def test_one_rank_has_nothing_to_compare(self) -> None:
        (found,) = build("ranks", traced_runs.cpu_trace())
        assert (found.kind, figures(found.reason)) == ("absent", ["299"])


class TestTheFirstScreenOfAProfileRun:
    def test_who_is_late_is_said_there_too(self) -> None:
        run = traced_runs.traced_profile()
        (late,) = stragglers(run)
        assert "ddp" in late
        assert figures(late) == ["1", "30.0 ms"]
        (limits,) = only(Limits, build("overview", run))
        assert late in limits.points
        assert late in shown(run)


class TestKernels:
    def test_ranks_are_added_up(self) -> None:
        found = tables("kernels", traced_runs.late_run())
        assert texts(found["Kernels"].rows[0]) == ["gemm", "48", "144 ms", "100%", "3.00 ms"]
        assert texts(found["Operators"].rows[0]) == ["aten::mm", "48", "32.0 ms", "24.0 ms", "100%"]

    def test_the_longest_are_shown(self) -> None:
        names = tuple(NamedTime(name=f"k{n}", count=1, total_ns=n * MS, device=0) for n in range(1, 31))
        digest = replace(traced_runs.late_rank(1, 0)[0], kernels=names)
        table = tables("kernels", traced_runs.trace_run(digest))["Kernels"]
        assert [row[0].text for row in table.rows] == [f"k{n}" for n in range(30, 15, -1)]
        assert "the first 15" in table.caption

    def test_peaks_of_memory(self) -> None:
        table = tables("peak-memory", traced_runs.trace_run(traced_runs.everything()))["Peak"]
        assert [texts(row) for row in table.rows] == [["rank 0, GPU 1", "5.00 GB", "unknown"]]

    def test_why_memory_is_unknown(self) -> None:
        (item,) = traced_runs.late_rank(1, 0)[0].not_measured
        assert only(Absent, build("peak-memory", traced_runs.late_run())) == [Absent(what="Memory", reason=item.reason)]


class TestHostileNames:
    def test_they_stay_text(self) -> None:
        found = elements(traced_runs.hostile_traces())
        assert "img" not in {tag for tag, _ in found.found}
        assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)

    def test_the_whole_of_a_long_name_is_in_the_page(self) -> None:
        html = page.render(of_run(traced_runs.hostile_traces()))
        assert traced_runs.HOSTILE[2].replace("<", "&lt;").replace(">", "&gt;") in html
        assert traced_runs.HOSTILE[3] in html

    def test_labels_in_charts_are_escaped_for_plotly(self) -> None:
        for text in elements(traced_runs.hostile_traces()).json[:-1]:
            assert "<img" not in text.replace("\\u003c", "<")

    def test_a_long_name_is_shortened_in_the_middle(self) -> None:
        assert clipped("abcdefghijkl", 8) == "abcde…kl"
        assert clipped("a\n b", 8) == "a b"
        assert name_cell("", 8) == Cell(text="(no name)")
        assert name_cell("abcdefghijkl", 8) == Cell(text="abcde…kl", full="abcdefghijkl")
