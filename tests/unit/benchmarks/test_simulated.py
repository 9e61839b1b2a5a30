"""The simulated runs of the benchmark of the report's size: as real ones leave them, and diagnosed as planned."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import Analysis, analyse
from dpdoctor.rules import diagnose
from tests.benchmarks.simulated import directory
from tests.benchmarks.simulated.timetable import STALLED_STEP, timetable
from tests.builders.sections import charts


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Return what is found in a run of 4 ranks."""
    root = tmp_path_factory.mktemp("simulated") / "run"
    directory.write(root, num_ranks=4, num_steps=200, modes=["ddp"])
    return diagnose(analyse(rundir.read(root)))


def test_every_step_has_its_place() -> None:
    slots = timetable(200, seed=1)
    assert [slot.step for slot in slots] == [*range(1, 201)]
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(slots))
    assert {slot.kind for slot in slots} == {"warmup", "proof", "measure", "trace"}


def test_figures_are_those_that_were_put_in(analysis: Analysis) -> None:
    ddp = analysis.summary.modes["ddp"]
    assert ddp.status == "ok"
    # 4 ranks train on 32 samples each.
    assert ddp.throughput.value == pytest.approx(128 / step_s("full"), rel=0.02)
    assert ddp.ablations["no_comm"].gain.value == pytest.approx(step_s("full") - step_s("no_comm"), abs=0.003)
    assert ddp.breakdown is not None
    assert ddp.loader is not None
    assert len(ddp.loader.workers) == 16
    assert ddp.loader.transforms[0].name == "RandomResizedCrop"


def step_s(ablation: str) -> float:
    """Return the mean seconds of the steady steps of an ablation's windows, as planned."""
    slots = [
        slot for slot in timetable(200, seed=4) if (slot.kind, slot.ablation) == ("measure", ablation) and slot.counted
    ]
    return fmean((slot.end_ns - slot.begin_ns) * 1e-9 for slot in slots if not slot.epoch_edge)


def test_the_late_rank_and_the_stalled_step_are_found(analysis: Analysis) -> None:
    verdict = analysis.cross_rank["ddp"].verdict
    assert (verdict.kind, verdict.rank) == ("persistent", 2)
    chart = charts("steps", analysis)["Steps of ddp"]
    (ring,) = [trace for trace in chart.traces if trace["name"] == "stands out"]
    assert f"step-ddp-1-{STALLED_STEP}" in ring["customdata"]


def test_every_kind_of_picture_is_drawn(analysis: Analysis) -> None:
    assert "Bandwidth by size" in charts("collectives", analysis)
    assert "Lateness by rank and step" in charts("ranks", analysis)
    assert "How long a fetch takes" in charts("loader", analysis)
    assert {"Devices of ddp", "Host of ddp"} <= charts("samplers", analysis).keys()
