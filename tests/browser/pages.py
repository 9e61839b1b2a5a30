"""The pages that every check of a page is made on: by name, a function that returns the HTML."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpdoctor.analysis import Analysis
from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report import page
from dpdoctor.report.documents.comparison import of_comparison
from dpdoctor.report.documents.run import of_run
from tests.builders import compared_pairs as pairs
from tests.builders.every_run import EVERY_RUN

RUNS: dict[str, Callable[[], Analysis]] = {run.__name__: run for run in EVERY_RUN}
COMPARISONS: dict[str, Callable[[], Comparison]] = {
    f"compared_{pair.__name__}": pair
    for pair in (pairs.larger_batch, pairs.three, pairs.failed, pairs.traced, pairs.mended, pairs.hostile)
}


def _page_of_run(run: Callable[[], Analysis]) -> str:
    return page.render(of_run(run()))


def _page_of_comparison(pair: Callable[[], Comparison]) -> str:
    return page.render(of_comparison(pair()))


PAGES: dict[str, Callable[[], str]] = {
    **{name: partial(_page_of_run, run) for name, run in RUNS.items()},
    **{name: partial(_page_of_comparison, pair) for name, pair in COMPARISONS.items()},
}
