"""Memory by kind: what is drawn and listed, added up again from the records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, MemoryRecord, analyse
from dpdoctor.report.blocks import Absent, Chart, Table
from tests.builders.records import even_rank, launch, run, window
from tests.builders.sections import build, only

GB = 10**9
KINDS = ["warmup", "measure", "measure", "trace"]


def record(number: int, *, on_gpu: bool = True, more: int = 0) -> MemoryRecord:
    gpu = {"allocated_bytes": 4 * GB, "peak_allocated_bytes": 9 * GB + more, "reserved_bytes": 12 * GB}
    return MemoryRecord(
        at_ns=number * GB,
        window=number,
        parameters_bytes=1 * GB,
        gradients_bytes=1 * GB,
        optimizer_bytes=2 * GB,
        resident_bytes=7 * GB,
        **(gpu if on_gpu else {}),
    )


def analysis(*ranks: list[MemoryRecord], ablation: str = "full") -> Analysis:
    windows = [window(100, window=number, kind=kind, ablation=ablation) for number, kind in enumerate(KINDS, 1)]
    made = [
        replace(even_rank(100, index=index), memory=tuple(memory), windows=(*windows,))
        for index, memory in enumerate(ranks)
    ]
    return analyse(run({"single": [launch(*made)]}))


def table(found: Analysis) -> dict[str, list[str]]:
    (one,) = only(Table, build("memory_over_time", found))
    return {cells[0].text: [cell.text for cell in cells[1:3]] for cells in one.rows}


def test_on_a_gpu_the_kinds_add_up_to_what_is_reserved() -> None:
    found = analysis([record(number) for number in (1, 2, 3)])
    assert table(found) == {
        "parameters": ["1.00 GB"] * 2,
        "gradients": ["1.00 GB"] * 2,
        "optimizer": ["2.00 GB"] * 2,
        "activations": ["5.00 GB"] * 2,
        "reserved": ["3.00 GB"] * 2,
    }
    (chart,) = only(Chart, build("memory_over_time", found))
    assert [sum(of) for of in zip(*(trace["y"] for trace in chart.traces), strict=True)] == pytest.approx([12.0] * 3)
    assert {trace["stackgroup"] for trace in chart.traces} == {"memory"}


def test_on_the_cpu_activations_are_unknown() -> None:
    found = table(analysis([record(number, on_gpu=False) for number in (1, 2)]))
    assert found["rest of the process"] == ["3.00 GB"] * 2
    assert found["activations, reserved"] == ["unknown"] * 2


def test_what_the_profiler_and_experiments_take_is_not_the_scripts() -> None:
    """Window 4 is the trace."""
    found = analysis([record(1), record(2), record(4, more=2 * GB)])
    assert table(found)["activations"] == ["5.00 GB"] * 2
    (absent,) = only(Absent, build("memory_over_time", analysis([record(2)], ablation="no_comm")))
    assert absent.what == "Memory over time"


def test_the_fullest_rank_is_shown() -> None:
    fuller = [replace(record(number), reserved_bytes=20 * GB) for number in (1, 2)]
    (chart,) = only(Chart, build("memory_over_time", analysis([record(1), record(2)], fuller)))
    assert "Rank 1, the fullest of 2" in chart.how_to_read


def test_a_run_of_before_says_once_that_it_was_not_recorded() -> None:
    (absent,) = only(Absent, build("memory_over_time", analysis([])))
    assert absent.reason == "no rank recorded it"
