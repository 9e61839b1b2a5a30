"""The pages that every check of a page is made on: by name, a function that returns the HTML."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpdoctor.analysis import Analysis
from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report import page
from dpdoctor.report.comparison import page as comparison_page
from tests.unit.report import diagnosed_runs, runs, traced_runs
from tests.unit.report.comparison import pairs

RUNS: dict[str, Callable[[], Analysis]] = {
    run.__name__: run
    for run in (
        runs.cpu_run,
        runs.gpu_run,
        runs.rankless_run,
        runs.failed_run,
        runs.empty_run,
        runs.repeated_run,
        runs.hostile_run,
        traced_runs.late_run,
        traced_runs.cpu_trace,
        traced_runs.hostile_traces,
        traced_runs.unreadable,
        traced_runs.traced_profile,
        diagnosed_runs.diagnosed_run,
        diagnosed_runs.hostile_findings,
    )
}


COMPARISONS: dict[str, Callable[[], Comparison]] = {
    f"compared_{pair.__name__}": pair
    for pair in (pairs.larger_batch, pairs.three, pairs.failed, pairs.traced, pairs.mended, pairs.hostile)
}


def _page_of_run(run: Callable[[], Analysis]) -> str:
    return page.render(run())


def _page_of_comparison(pair: Callable[[], Comparison]) -> str:
    return comparison_page.render(pair())


PAGES: dict[str, Callable[[], str]] = {
    **{name: partial(_page_of_run, run) for name, run in RUNS.items()},
    **{name: partial(_page_of_comparison, pair) for name, pair in COMPARISONS.items()},
}
