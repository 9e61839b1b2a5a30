from __future__ import annotations

from dpdoctor.report.drawing.step_chart import with_windows
from tests.builders.records import rank, step, window

WARMUP, PROOF, MEASURE, TRACE = range(4)


def names(*of_windows: tuple[int, float]) -> list[tuple[str, float, str]]:
    """Return (text, place, anchor) above a rank whose steps take so many milliseconds, one in each window."""
    kinds = ("warmup", "proof", "measure", "trace")
    begin, steps = 0.0, []
    for number, ms in of_windows:
        steps.append(step(ms, window=number, begin_ns=int(begin * 1e6)))
        begin += ms
    shown = rank(steps, [window(1, window=number, kind=kind) for number, kind in enumerate(kinds)])
    layout = with_windows({"xaxis": {}, "yaxis": {}}, shown, [shown], 0, has_lanes=False)
    return [(found["text"], found["x"], found["xanchor"]) for found in layout["annotations"]]


def test_neighbours_without_room_share_a_name() -> None:
    found = names((WARMUP, 10), (PROOF, 20), (MEASURE, 900), (PROOF, 5), (TRACE, 65))
    assert found == [("warmup, proof", 0.0, "left"), ("proof, trace", 0.93, "right")]


def test_those_with_room_have_names_of_their_own() -> None:
    assert names((WARMUP, 200), (PROOF, 800)) == [("warmup", 0.0, "left"), ("proof", 0.2, "left")]
