"""Runs that went wrong, or in which there is next to nothing: the page opens and says what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.visit import Visit
from tests.builders import odd_runs, runs, traced_runs

pytestmark = pytest.mark.browser

ODD = {
    "a mode failed": (
        runs.cpu_run,
        ["fsdp: failed", "FSDP shards parameters; train.py line 88 calls deepcopy", "RuntimeError: deepcopy"],
    ),
    "a mode was inactive": (runs.cpu_run, ["Inactive: there is no accelerator"]),
    "no GPU": (runs.cpu_run, ["No GPU was found on this machine"]),
    "no finding": (runs.cpu_run, ["Nothing was found that would be worth a change"]),
    "every mode failed": (runs.failed_run, ["No mode could be measured.", "the disk is full"]),
    "no mode": (runs.empty_run, ["This run has no modes: nothing was measured."]),
    "no rank": (runs.rankless_run, ["torchrun did not start"]),
    "interrupted": (
        odd_runs.interrupted_run,
        ["ddp: interrupted", odd_runs.CTRL_C, "fsdp: skipped", "the run ended before this mode began"],
    ),
    "a rank was killed": (odd_runs.killed_rank_run, ["ddp: failed", odd_runs.KILLED]),
    "a rank is missing": (odd_runs.lost_rank_run, ["No throughput of ddp: rank 1 left nothing"]),
    "a trace is missing": (odd_runs.lost_trace, ["No trace of 3 is here"]),
    "no trace could be read": (traced_runs.unreadable, ["1 trace could not be read", "rank7.json: not JSON"]),
    "one step": (odd_runs.one_step_run, ["single: failed", odd_runs.TOO_SHORT]),
    "one measured step": (odd_runs.one_step_measured, ["single trains", "No interval from 1 window"]),
    "a rank left nothing": (odd_runs.silent_run, ["single: failed", "rank 0 was killed"]),
}


@pytest.mark.parametrize(("run", "said"), ODD.values(), ids=ODD)
def test_the_page_says_what_happened(visit: Callable[..., Visit], run: Callable[[], Analysis], said: list[str]) -> None:
    visited = visit(page.render(of_run(run())), scripts=False)
    visited.page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    text = visited.page.locator("main").inner_text()
    assert [words for words in said if words not in text] == []


@pytest.mark.parametrize(
    "run",
    [
        odd_runs.interrupted_run,
        odd_runs.killed_rank_run,
        odd_runs.lost_trace,
        odd_runs.one_step_run,
        odd_runs.one_step_measured,
    ],
)
def test_the_page_draws_what_there_is(visit: Callable[..., Visit], run: Callable[[], Analysis]) -> None:
    visited = visit(page.render(of_run(run())))
    assert visited.undrawn() == []
    assert visited.said == []
    assert visited.requests == []
