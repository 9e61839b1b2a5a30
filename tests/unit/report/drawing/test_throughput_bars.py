from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import ModeSummary
from dpdoctor.report.drawing.throughput_bars import STEADY, WITH_EDGES, throughput_bars
from tests.builders import runs
from tests.builders.figures import figures


class TestBars:
    def measured(self) -> dict[str, ModeSummary]:
        modes = runs.cpu_run().summary.modes
        return {name: modes[name] for name in ("single", "dp", "ddp")}

    def test_labels_have_speedup_and_share_of_linear(self) -> None:
        axis = throughput_bars(self.measured(), (STEADY,)).layout["yaxis"]
        assert axis["tickvals"] == ["One device", "DataParallel", "DDP"]
        assert axis["ticktext"] == ["One device", "DataParallel<br>changed nothing", "DDP<br>1.41x, 70.7 % of linear"]

    def test_bars_are_drawn_at_their_labels_with_whiskers(self) -> None:
        steady, linear = throughput_bars(self.measured(), (STEADY,)).traces
        assert steady["y"] == ["One device", "DataParallel", "DDP"]
        assert steady["x"] == pytest.approx([316, 316, 447], abs=1)
        assert all(arm > 0 for arm in (*steady["error_x"]["array"], *steady["error_x"]["arrayminus"]))
        assert (linear["y"], linear["x"]) == (["DDP"], pytest.approx([632], abs=1))

    def test_each_kind_has_bars(self) -> None:
        chart = throughput_bars(self.measured(), (STEADY, WITH_EDGES))
        assert [trace["name"] for trace in chart.traces] == ["steady", "with epoch edges", "linear scaling"]

    def test_one_device_alone_needs_no_legend(self) -> None:
        chart = throughput_bars({"single": runs.cpu_run().summary.modes["single"]}, (STEADY,))
        assert chart.layout["showlegend"] is False
        assert "Diamond" not in chart.how_to_read

    def test_in_words(self) -> None:
        said = throughput_bars(self.measured(), (STEADY,)).alternative.rpartition("DDP: ")[2]
        assert figures(said) == ["447 samples/s", "443", "451 samples/s", "1.41x", "70.7 %"]

    def test_hostile_names_are_escaped(self) -> None:
        mode = dataclasses.replace(self.measured()["single"])
        (label,) = throughput_bars({"<img>": mode}, (STEADY,)).layout["yaxis"]["ticktext"]
        assert label.startswith("&lt;img&gt;")
