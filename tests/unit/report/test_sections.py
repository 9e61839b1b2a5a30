from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects
import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, analyse
from dpdoctor.records import Sample
from dpdoctor.report import views
from dpdoctor.report.blocks import (
    Absent,
    Answer,
    Callout,
    Cell,
    Chart,
    Column,
    Fold,
    Limits,
    Note,
    NotMeasured,
    OfMode,
    Paragraph,
    Section,
    Table,
    View,
)
from dpdoctor.report.documents import assembly, comparison
from dpdoctor.report.documents import run as run_document
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.drawing import strips
from dpdoctor.report.drawing.step_chart import NO_OUTLIER, OUTLIER_RULE
from dpdoctor.report.text import capital, sentence
from dpdoctor.report.views import samplers
from dpdoctor.report.words import standing, verdict
from dpdoctor.report.words.step_parts import phase_words
from tests.builders import plugins, records, runs
from tests.builders.every_run import EVERY_RUN
from tests.builders.figures import figures
from tests.builders.sections import VIEWS, build, charts, every_chart, only


@pytest.mark.parametrize("run", EVERY_RUN)
class TestEverySectionOfEveryRun:
    def test_says_something(self, run: Callable[[], Analysis]) -> None:
        document = of_run(run())
        assert [part.name for part in document.parts] == [section.name for section in run_document.SECTIONS]
        assert [part.name for part in document.parts if not part.views and not part.result] == []

    def test_draws_only_what_plotly_knows(self, run: Callable[[], Analysis]) -> None:
        for chart in every_chart(run()):
            # plotly refuses an attribute that it does not know with a ValueError.
            figure = plotly.graph_objects.Figure(data=list(chart.traces), layout=chart.layout)
            assert len(figure.data) == len(chart.traces)

    def test_charts_say_how_to_read_them_and_what_they_show(self, run: Callable[[], Analysis]) -> None:
        for chart in every_chart(run()):
            assert chart.how_to_read.endswith(".")
            assert chart.alternative.endswith(".")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (("ddp: a", "ddp: b", "ddp: c"), "ddp: a \N{MIDDLE DOT} b \N{MIDDLE DOT} c"),
        (("ddp: a", "", "fsdp: b"), "ddp: a \N{MIDDLE DOT} fsdp: b"),
        (("a", "a", "ddp: b"), "a \N{MIDDLE DOT} a \N{MIDDLE DOT} ddp: b"),
    ],
)
def test_beside_a_title_a_mode_is_named_once(said: Sequence[str], shown: str) -> None:
    views = tuple(
        View(name=str(number), title="", build=lambda _: [Paragraph(text="x")], result=lambda _, text=text: text)
        for number, text in enumerate(said)
    )
    (part,) = assembly.parts([Section(name="all", title="All", views=views)], None)
    assert part.result == shown


def withheld(what: str, analysis: Analysis, mode: str) -> Absent:
    """Return that something of a mode that failed or was skipped is not shown."""
    reason = standing.withheld_briefly(analysis.summary.modes[mode])
    assert reason is not None
    return Absent(what=what, reason=reason)


OFFERED = (
    (run_document.SECTIONS, [*plugins.collect(views, "VIEW").values()]),
    (comparison.SECTIONS, [value for value in vars(comparison).values() if isinstance(value, View)]),
)


@pytest.mark.parametrize(("sections", "offered"), OFFERED)
def test_every_view_is_listed_once_under_an_address_of_its_own(
    sections: Sequence[Section[Any]], offered: Sequence[View[Any]]
) -> None:
    listed = [view.name for section in sections for view in section.views]
    assert sorted(listed) == sorted(view.name for view in offered)
    assert len(listed) == len(set(listed))
    assert {*listed} & {section.name for section in sections} == set()


class TestOverview:
    def test_the_table_of_modes(self) -> None:
        (table,) = only(Table, build("overview", runs.cpu_run()))
        single, dp, ddp, fsdp = table.rows
        # Windows of 4 steps of 101 ms, 3 of 102 ms (one is an edge) and 4 of 101 ms: 352 samples in 1.114 s.
        assert single == (
            Cell(text="single", note="1 rank, gloo"),
            Cell(text="ok", tone="good"),
            Cell(text="316 samples/s", note="312–320"),
            Cell(text="101 ms", note="100–103"),
            Cell(text="—", note="the baseline"),
            Cell(text="—", note="the baseline"),
            Cell(text="10.1 s", note="10.0–10.3"),
            Cell(text="32", note="32 per device"),
        )
        assert dp[1] == Cell(text="inactive", tone="muted")
        assert dp[4:6] == (Cell(text="—", note="not compared"),) * 2
        assert [cell.text for cell in ddp[4:6]] == ["1.41x", "71%"]
        assert ddp[7] == Cell(text="64", note="32 per device")
        assert fsdp == (Cell(text="fsdp", note="2 ranks, gloo"), Cell(text="failed", tone="bad"), *[Cell(text="—")] * 6)
        assert figures(table.caption) == ["95%", "3"]

    def test_a_failed_mode_shows_its_reason_and_its_last_words(self) -> None:
        analysis = runs.cpu_run()
        reason = analysis.summary.modes["fsdp"].reason
        assert reason
        assert only(Callout, build("overview", analysis)) == [
            Callout(
                tone="bad",
                title="fsdp: failed",
                text=sentence(reason),
                lines=("Traceback (most recent call last):", "RuntimeError: deepcopy"),
            )
        ]

    def test_what_the_words_mean(self) -> None:
        analysis = runs.cpu_run()
        (fold,) = only(Fold, build("overview", analysis))
        said, detail, sources = (block.text for block in fold.blocks if isinstance(block, Paragraph))
        headline = verdict.headline(analysis.summary)
        assert (said, detail) == (headline.sentence, headline.detail)
        assert analysis.summary.modes["single"].batch.source in sources
        (limits,) = only(Limits, build("overview", analysis))
        assert figures(limits.points[-1]) == ["1"]

    @pytest.mark.parametrize("run", [runs.failed_run, runs.rankless_run])
    def test_no_figure_of_a_failed_mode_is_shown(self, run: Callable[[], Analysis]) -> None:
        (table,) = only(Table, build("overview", run()))
        assert {cell.text for row in table.rows for cell in row[2:]} == {"—"}


class TestOverhead:
    def test_an_unknown_cost_shows_its_reason(self) -> None:
        (costs,) = only(Table, build("overhead", runs.gpu_run()))
        assert [row[2] for row in costs.rows] == [Cell(text="unknown", footnote="no trace was recorded")] * 2
        assert costs.footnotes == ("the script was not also run bare", "no trace was recorded")


class TestPhases:
    def test_stacked_bars(self) -> None:
        chart = charts("phases", runs.gpu_run())["One step on the host"]
        assert [trace["name"] for trace in chart.traces] == [
            "data_wait",
            "h2d",
            "forward",
            "backward",
            "optimizer",
            "other",
        ]
        assert chart.layout["barmode"] == "stack"
        assert chart.layout["xaxis"]["title"]["text"] == "ms per step"
        assert [trace["x"][0] for trace in chart.traces] == pytest.approx([2, 1, 41.33, 50, 5, 2], abs=0.01)
        assert chart.traces[2]["text"] == ["41%", "41%"]
        assert chart.traces[1]["text"] == ["", ""]
        assert chart.alternative.startswith("single: data_wait 2.00 ms")
        assert figures(chart.alternative)[:6] == ["2.00 ms", "2.0%", "1.00 ms", "1.0%", "41.3 ms", "41%"]

    def test_a_script_without_an_optimizer_has_a_bar_and_an_unknown_phase(self) -> None:
        by_hand = runs.rank(runs.steps((2, 1, 40, 50, 0, 7)), conversion=replace(runs.conversion(), optimizers=()))
        analysis = analyse(records.run({"single": [records.launch(by_hand)]}))
        blocks = build("phases", analysis)
        (chart,), (table,) = only(Chart, blocks), only(Table, blocks)
        assert {trace["name"]: trace["x"] for trace in chart.traces}["optimizer"] == [0]
        assert "optimizer" not in chart.alternative
        assert table.rows[0][5].text == "unknown"
        assert table.footnotes == (analysis.summary.modes["single"].phases["optimizer"].reason,)
        assert "no torch optimizer" in table.footnotes[0]

    def test_a_gpu_gets_a_caution(self) -> None:
        caution = "A GPU works behind its host"
        assert any(caution in block.text for block in only(Note, build("phases", runs.gpu_run())))
        assert not any(caution in block.text for block in only(Note, build("phases", runs.cpu_run())))


class TestSteps:
    def test_one_curve_per_rank_on_the_time_since_launch(self) -> None:
        chart = charts("steps", runs.gpu_run())["Steps of ddp"]
        assert [trace["name"] for trace in chart.traces] == ["rank 0", "rank 1"]
        rank0 = chart.traces[0]
        assert rank0["x"][:2] == pytest.approx([1.5, 1.6])
        assert rank0["y"][:2] == pytest.approx([1.0, 0.1])
        assert rank0["text"][:2] == ["1.00 s", "100 ms"]
        assert chart.layout["yaxis"]["type"] == "log"

    def test_even_steps_are_drawn_from_zero(self) -> None:
        run = records.run({"single": [records.launch(records.even_rank(100, num_steps=8))]})
        chart = charts("steps", analyse(run))["Steps of single"]
        assert chart.layout["yaxis"]["rangemode"] == "tozero"
        assert chart.layout["yaxis"]["title"]["text"] == "ms"

    def test_warm_up_is_shaded_and_events_are_marked(self) -> None:
        chart = charts("steps", runs.cpu_run())["Steps of ddp"]
        (shape,) = chart.layout["shapes"]
        assert (shape["x0"], shape["x1"]) == pytest.approx((0.5, 0.5 + 10 * 0.142 + 4 * 0.142))
        assert chart.layout["annotations"][0]["text"] == "warmup"
        edges, gc = (trace for trace in chart.traces if trace.get("yaxis") == "y2")
        assert (edges["name"], gc["name"]) == ("epoch edge", "gc")
        assert gc["x"] == pytest.approx([1.4, 1.4])
        assert [figures(text) for text in gc["text"]] == [["0", "3", "3.00 ms", "2"], ["1", "3", "3.00 ms", "2"]]

    def test_of_many_ranks_the_slowest_are_drawn_and_it_says_so(self) -> None:
        ranks = [records.even_rank(100 + index, index=index, world_size=9) for index in range(9)]
        run = records.run({"ddp": [records.launch(*ranks, mode="ddp")]}, {"ddp": 9})
        chart = charts("steps", analyse(run))["Steps of ddp"]
        assert [trace["name"] for trace in chart.traces[2:]] == [f"rank {index}" for index in range(2, 9)]
        assert figures(chart.how_to_read) == ["7", "9"]

    def test_a_band_reaches_over_the_ranks_that_have_no_curve(self) -> None:
        ranks = [
            records.rank([records.step(100 + index, step=1)], [records.window(100)], index=index, world_size=9)
            for index in range(9)
        ]
        run = records.run({"ddp": [records.launch(*ranks, mode="ddp")]}, {"ddp": 9})
        low, high = charts("steps", analyse(run))["Steps of ddp"].traces[:2]
        assert (low["y"], high["y"]) == ([100], [108])
        assert high["fill"] == "tonexty"

    def test_a_step_that_stands_out_is_ringed_and_the_ring_leads_to_its_row(self) -> None:
        blocks = build("steps", analyse(records.run({"single": [records.launch(runs.stalled_rank())]})))
        (ring,) = [trace for chart in only(Chart, blocks) for trace in chart.traces if trace["name"] == "stands out"]
        row = only(Table, blocks)[0].rows[0]
        assert ring["customdata"] == [row[0].anchor] == ["step-single-1-8"]
        assert [figures(text) for text in ring["text"]] == [["8", "0", "400 ms", "100 ms"]]
        assert [cell.text for cell in row[:4]] == ["8", "400 ms", "100 ms", "4.00x"]
        longer, happened = (cell.text for cell in row[4:])
        assert phase_words("data_wait") in longer
        assert figures(longer) == ["0", "300 ms"]
        assert happened.startswith("gc ")
        assert figures(happened) == ["290 ms", "0", "2"]

    def test_without_one_the_rule_is_told_all_the_same(self) -> None:
        said = [block.text for block in only(Paragraph, build("steps", runs.gpu_run()))]
        assert said.count(f"{NO_OUTLIER} {OUTLIER_RULE}") == 2

    def test_windows_of_ablations_have_a_lane(self) -> None:
        steps = [records.step(100, step=i, window=1 + i // 5, begin_ns=i * 100 * records.MS) for i in range(10)]
        windows = [
            records.window(500, begin_ns=0, end_ns=500 * records.MS),
            records.window(
                500, window=2, ablation="no_comm", round=3, begin_ns=500 * records.MS, end_ns=1000 * records.MS
            ),
        ]
        run = records.run({"single": [records.launch(records.rank(steps, windows))]})
        (lane,) = [t for t in charts("steps", analyse(run))["Steps of single"].traces if t["name"] == "ablation"]
        assert lane["x"] == [0.5, 1.0, None]
        assert lane["text"][0] == "ablation no_comm, round 3"

    def test_of_many_ranks_the_table_has_the_slowest_and_those_that_did_not_end_well(self) -> None:
        ranks = [records.even_rank(100 + index, index=index, world_size=80) for index in range(80)]
        ranks[3] = records.even_rank(103, index=3, world_size=80, status="failed")
        (table,) = only(
            Table, build("steps", analyse(records.run({"ddp": [records.launch(*ranks, mode="ddp")]}, {"ddp": 80})))
        )
        assert [row[0].text for row in table.rows] == ["3", *map(str, range(17, 80))]
        assert figures(table.caption) == ["80"]

    def test_long_runs_are_thinned_and_it_says_so(self) -> None:
        many = [records.step(200 if i == 7777 else 100, step=i, begin_ns=i * 100 * records.MS) for i in range(20_000)]
        rank = records.rank(many, [records.window(2_000_000)])
        chart = charts("steps", analyse(records.run({"single": [records.launch(rank)]})))["Steps of single"]
        assert len(chart.traces[0]["x"]) < 1_000
        assert max(chart.traces[0]["y"]) == 200
        assert figures(chart.how_to_read) == ["50"]

    def test_no_step_of_a_failed_mode_is_called_measured(self) -> None:
        (table,) = only(Table, build("steps", runs.cpu_run()))[3:]
        assert table.rows[0][1] == Cell(text="failed", note="in phase wrap", tone="bad")
        assert table.rows[0][5] == Cell(text="—")


class TestSamplers:
    def test_all_readings_of_devices_stand_below_the_steps_on_one_axis(self) -> None:
        chart = charts("samplers", runs.gpu_run())["Devices of ddp"]
        titles = [note["text"].partition("</b>")[0].removeprefix("<b>") for note in chart.layout["annotations"]]
        steps, *of_gpu, others, lowered = titles
        assert steps == "Steps, logarithmic"
        assert "kernel ran" in of_gpu[0]
        assert [title.rpartition(", ")[2] for title in of_gpu] == ["%", "W", "MHz", "°C"]
        assert all(title.startswith("GPU: ") for title in (*of_gpu, others))
        assert lowered == strips.THROTTLE_TITLE
        running = next(trace for trace in chart.traces if trace["name"] == "gpu0 kernel running")
        assert running["y"][0] == pytest.approx(91)
        assert (running["yaxis"], chart.layout["xaxis"]["anchor"]) == ("y2", "y7")
        assert "how busy" in chart.how_to_read
        said = dict(text.split(": ") for text in chart.alternative.split(". ") if ": " in text)
        assert figures(said["gpu0 kernel running"]) == ["91%", "91%", "91%"]
        assert figures(said["power cap"]) == ["100%"]
        assert "gpu0" in said["power cap"]
        assert any(trace["name"] == "gpu0 fan vibes" for trace in chart.traces)

    def test_memory_has_a_chart_of_its_own_below_the_same_steps(self) -> None:
        chart = charts("samplers", runs.gpu_run())["Memory, devices of ddp"]
        titles = [note["text"].partition("</b>")[0].removeprefix("<b>") for note in chart.layout["annotations"]]
        assert titles == ["Steps, logarithmic", "GPU: memory, GB"]

    def test_readings_of_the_host_have_a_chart_of_their_own(self) -> None:
        chart = charts("samplers", runs.gpu_run())["Host of ddp"]
        names = {trace["name"] for trace in chart.traces}
        assert {"of all ranks, the longest", "host cpu", "rank0 cpu", "rank0.workers cpu"} <= names
        assert not any(name.startswith("gpu") for name in names)

    def test_unmeasured_stretches_are_shaded(self) -> None:
        (shape,) = charts("samplers", runs.cpu_run())["Host of ddp"].layout["shapes"]
        assert shape["x0"] == pytest.approx(0.5)

    def test_what_counters_gained_is_told_not_drawn(self) -> None:
        analysis = runs.gpu_run()
        assert not any("energy" in trace["name"] for chart in every_chart(analysis) for trace in chart.traces)
        (table,) = [t for t in only(Table, build("samplers", analysis)) if t.caption.startswith("From the first")][:1]
        assert [[cell.text for cell in row] for row in table.rows] == [["gpu", "energy", "8,700 J"]]

    def test_what_could_not_be_read_has_its_reason(self) -> None:
        analysis = runs.gpu_run()
        samples = analysis.run.modes["ddp"][0].samples
        reasons = {f"{key} of {one.source}": reason for one in samples for key, reason in one.unknown.items()}
        assert [*reasons] == ["pressure_cpu_ratio of host", "ecc_errors of gpu0"]
        found = {block.what: block.reason for block in only(Absent, build("samplers", analysis))}
        assert reasons.items() <= found.items()

    def test_one_reason_of_many_sources_is_said_once(self) -> None:
        samples = [
            Sample(at_ns=runs.BEGIN_NS, source=f"gpu{i}", values={}, unknown={"power_w": "no"}) for i in range(9)
        ]
        run = records.run({"single": [runs.launch(runs.rank(), samples=samples)]})
        found = [(block.what, block.reason) for block in only(Absent, build("samplers", analyse(run)))]
        assert found.count(("power_w of gpu0 and 8 more sources", "no")) == 1

    def test_a_cpu_run_says_why_there_is_no_gpu(self) -> None:
        found = only(Absent, build("samplers", runs.cpu_run()))
        assert [block.what for block in found if "_" not in block.what] == ["Samplers"] * 2 + [samplers.GPU_READINGS]
        assert "CPU" in found[-1].reason

    def test_each_mode_has_its_own(self) -> None:
        blocks = VIEWS["samplers"].build(runs.cpu_run())
        assert [block.mode for block in only(OfMode, blocks)] == ["single", "dp", "ddp", "fsdp"]


class TestConversion:
    def test_proof_says_ok_failed_or_not_judged(self) -> None:
        blocks = build("conversion", runs.cpu_run())
        proofs = [table for table in only(Table, blocks) if table.columns[0] == Column(title="Check")]
        (proof,) = [table for table in proofs if len(table.rows) > 1]
        assert {table.rows[-1][0] for table in proofs} == {Cell(text="samples")}
        *wrapped, samples = proof.rows
        assert samples[1] != Cell(text="failed", tone="bad")
        assert tuple(wrapped) == (
            (Cell(text="parameters equal"), Cell(text="ok", tone="good"), Cell(text="equal on 2 ranks")),
            (
                Cell(text="gradients reduced"),
                Cell(text="not judged", tone="muted"),
                Cell(text="the trace has no sizes"),
            ),
        )

    def test_remarks_stand_out(self) -> None:
        analysis = runs.cpu_run()
        wrapped = analysis.summary.modes["ddp"].conversion
        assert wrapped is not None
        (remark,) = wrapped.warnings
        assert only(Callout, build("conversion", analysis)) == [Callout(tone="warn", title="ddp", text=remark)]

    def test_a_remark_that_holds_for_several_modes_is_made_once(self) -> None:
        remarked = runs.conversion(warnings=["the loss is summed"])
        modes = {name: [records.launch(runs.rank(conversion=remarked), mode=name)] for name in ("single", "fsdp")}
        assert only(Callout, build("conversion", analyse(records.run(modes)))) == [
            Callout(tone="warn", title="single and fsdp", text="the loss is summed")
        ]

    def test_an_iterable_dataset_is_listed_without_a_sampler(self) -> None:
        wrapped = runs.conversion()
        loader = replace(wrapped.loaders[0], sampler="_InfiniteConstantSampler")
        rank = runs.rank(conversion=replace(wrapped, loaders=(loader,)))
        blocks = build("conversion", analyse(records.run({"single": [records.launch(rank)]})))
        (table,) = [table for table in only(Table, blocks) if table.columns[0] == Column(title="Loader")]
        assert table.rows[0][2] == Cell(text="none (iterable)")

    def test_a_run_without_ranks_says_why(self) -> None:
        analysis = runs.rankless_run()
        names = [name for name, mode in analysis.summary.modes.items() if mode.status in ("failed", "skipped")]
        assert [analysis.summary.modes[name].status for name in names] == ["failed", "skipped"]
        assert only(Absent, build("conversion", analysis)) == [withheld("Conversion", analysis, name) for name in names]


def test_the_environment_tells_what_each_mode_ran_on() -> None:
    (table,) = [t for t in only(Table, build("environment", runs.cpu_run())) if t.caption.startswith("Modes")]
    assert [cell.text for cell in table.rows[2]] == ["ddp", "2", "2", "per-device", "by name"]


def test_the_environment_tells_how_to_run_it_again() -> None:
    lines = build("environment", runs.cpu_run())[0]
    assert lines.lines == ("cd /home/me", "dpdoctor profile /home/me/train.py --epochs 2")


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "overview"])
def test_why_a_mode_failed_stands_at_the_top_only(name: str) -> None:
    reason = "FSDP shards parameters; train.py line 88 calls deepcopy"
    assert reason in str(VIEWS["overview"].build(runs.cpu_run()))
    assert reason not in str(VIEWS[name].build(runs.cpu_run()))


def test_the_launch_that_did_not_speak_for_its_mode_says_why_it_failed() -> None:
    launches = [records.launch(number=n, status="failed", reason=f"failed {n}") for n in (1, 2)]
    analysis = analyse(records.run({"single": launches}))
    first, second = only(Absent, build("steps", analysis))
    assert first == withheld("Steps", analysis, "single")
    assert second == Absent(what="Steps", reason="failed 2")


def test_modes_without_figures_are_told_of_together() -> None:
    run = records.run({name: [records.launch(records.rank((), ()), mode=name)] for name in ("single", "ddp")})
    analysis = analyse(run)
    reason = analysis.summary.modes["single"].throughput.reason
    assert reason
    (told,) = [text for block in only(Limits, build("overview", analysis)) for text in block.points if reason in text]
    assert "single and ddp" in told
    assert [(one.what, one.reason) for one in only(Absent, build("overhead", analysis))] == [("Overhead", reason)] * 2
    shown = next(part for part in of_run(analysis).parts if part.name == "run-details").views[-1]
    (missing,) = only(NotMeasured, shown.blocks)
    (what,) = [what for told, what in missing.reasons if told == sentence(capital(reason))]
    assert "Overhead (single, ddp)" in what
    assert "Phases (single, ddp)" in what


def test_leaders_that_cannot_be_told_apart_stand_together() -> None:
    ddp = [runs.rank(index=index, world_size=2) for index in range(2)]
    modes = {
        "single": [records.launch(runs.rank())],
        **{name: [records.launch(*ddp, mode=name)] for name in ("ddp", "fsdp")},
    }
    analysis = analyse(records.run(modes, {"ddp": 2, "fsdp": 2}))
    blocks = build("overview", analysis)
    assert [*standing.leaders(analysis.summary)] == ["ddp", "fsdp"]
    (answer,) = only(Answer, blocks)
    ((name, leading, _),) = answer.figures
    assert "no measurable difference" in name
    assert leading == "ddp and fsdp"


def test_footnotes_are_given_once_in_reading_order() -> None:
    rows = tuple(tuple(Cell(text="x", footnote=note) for note in row) for row in (("b", ""), ("a", "b")))
    assert Table(caption="t", columns=(Column(title="1"), Column(title="2")), rows=rows).footnotes == ("b", "a")


def test_a_row_that_does_not_fit_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="2 columns but a row of 1 cells"):
        Table(caption="t", columns=(Column(title="a"), Column(title="b")), rows=((Cell(text="x"),),))


def test_an_unknown_tone_is_refused() -> None:
    with pytest.raises(ValueError, match="tone is 'purple'"):
        Cell(text="x", tone="purple")
