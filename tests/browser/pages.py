"""The pages that every check of a page is made on: by name, a function that returns the HTML."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from tests.unit.report import diagnosed_runs, runs, traced_runs

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


def _rendered(run: Callable[[], Analysis]) -> str:
    return page.render(run())


# Pages of another kind than a run's report join here, with a function that returns their HTML.
PAGES: dict[str, Callable[[], str]] = {name: partial(_rendered, run) for name, run in RUNS.items()}
