"""A run that was loaded, as an interactive Python and a notebook show it."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor.analysis import Diagnosis, ModeSummary, RunSummary
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.redact import printable
from dpdoctor.report import page
from dpdoctor.report.documents.brief import Brief, brief
from dpdoctor.report.text import mode_label, run_title, with_interval
from dpdoctor.report.traces.traced import is_trace_run


class LoadedRun:
    """What `dpdoctor.load` returns: a run that a notebook shows with its verdict, modes and costliest bottlenecks.

    Attributes:
        analysis: everything that the report reads, the records of every rank included.
    """

    def __init__(self, *, analysis: Diagnosis) -> None:
        self.analysis = analysis

    @property
    def summary(self) -> RunSummary:
        """The figures and findings, as run.json holds them."""
        return self.analysis.summary

    def __repr__(self) -> str:
        """Return the verdict and a line per mode."""
        lines = (f"{_origin(self.analysis)}", brief(self.analysis).verdict.sentence, *_modes(self.analysis))
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Return a fragment for a notebook: no script, nothing to load, its style only for itself; text is escaped."""
        return _html(self.analysis, brief(self.analysis))


def _origin(analysis: Diagnosis) -> str:
    return f"{run_title(analysis)}, {analysis.summary.created}"


def _modes(analysis: Diagnosis) -> Iterator[str]:
    """Yield a line per mode; of traces alone nothing was measured that would stand in it."""
    if is_trace_run(analysis):
        return
    for name, mode in analysis.summary.modes.items():
        yield f"{mode_label(name)}: {', '.join(_figures(mode))}"


def _figures(mode: ModeSummary) -> Iterator[str]:
    if why_withheld(mode) is not None:
        yield mode.status if mode.status != "ok" else "failed"
        return
    yield mode.status
    yield with_interval(mode.throughput)
    if mode.speedup.value is not None:
        yield f"{with_interval(mode.speedup)} of one device"


def _html(analysis: Diagnosis, found: Brief) -> str:
    environment = page.new_environment()
    # Autoescape makes elements harmless; this does it for characters that turn the text around.
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    return environment.get_template("notebook.html").render(
        origin=_origin(analysis), brief=found, style=page.asset("notebook.css")
    )
