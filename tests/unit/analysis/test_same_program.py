"""Two launches of one program, with what they say of the others."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import analyse
from dpdoctor.analysis.base.summary import RunSummary
from dpdoctor.analysis.same_program import words
from dpdoctor.report.words.verdict import limits
from tests.builders import records
from tests.builders.records import even_rank, launch, rank, step, window


def measured(dp_ms: float, status: str = "inactive") -> RunSummary:
    """Return one device with steps of 100 ms, dp with these, and ddp with as long ones as one device."""
    ddp = [even_rank(100, num_windows=2, index=index, world_size=2) for index in range(2)]
    why = {"status": status, "reason": "needs a GPU"} if status != "ok" else {}
    modes = {
        "single": [launch(even_rank(100, num_windows=2))],
        "dp": [launch(even_rank(dp_ms, num_windows=2), mode="dp", **why)],
        "ddp": [launch(*ddp, mode="ddp")],
    }
    return analyse(records.run(modes, {"ddp": 2})).summary


def test_rates_hold_what_launches_of_one_program_differ_by() -> None:
    found = measured(125)
    throughput, speedup = found.modes["ddp"].throughput, found.modes["ddp"].speedup
    assert throughput.scope == "run"
    assert (throughput.value, throughput.low) == pytest.approx((640, 640 * 0.8))
    assert speedup.low < 2 * 0.8
    # What lies within one launch does not widen.
    assert found.modes["ddp"].step.low == pytest.approx(0.1)


def test_it_is_said() -> None:
    said = [text for text in limits(measured(125)) if "same program" in text]
    assert len(said) == 1
    assert "20%" in said[0]


@pytest.mark.parametrize("found", [measured(100), measured(125, "ok")], ids=["alike", "another program"])
def test_nothing_is_widened_or_said(found: RunSummary) -> None:
    throughput = found.modes["ddp"].throughput
    assert throughput.low == throughput.high
    assert (found.caveat, words(found.modes)) == ("", "")


def test_steady_steps_with_edges_tell_nothing_of_those_without() -> None:
    few, most = (
        rank(
            [step(200 if edge else 100, window=n, epoch_edge=edge) for n in (1, 2) for edge in edges],
            [window(400 + 100 * sum(edges), window=n) for n in (1, 2)],
        )
        for edges in ((False, False, False, True), (False, True, True, True))
    )
    inactive = launch(most, mode="dp", status="inactive", reason="needs a GPU")
    found = analyse(records.run({"single": [launch(few)], "dp": [inactive]})).summary
    assert found.modes["dp"].step.value == pytest.approx(0.175)
    assert found.caveat == ""
    assert found.modes["single"].throughput.low == pytest.approx(320)
