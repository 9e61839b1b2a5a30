"""One traced step of each rank, and the way to the whole trace."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.blocks import Block, View
from dpdoctor.report.traces.step_timeline import step_timeline
from dpdoctor.report.traces.timeline import perfetto
from dpdoctor.report.traces.traced import by_mode, has_traces


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return a timeline per mode, and the way to the traces."""
    return [*by_mode(analysis, "Timeline", step_timeline), perfetto(analysis)]


VIEW: View[Diagnosis] = View(name="traced_step", title="One traced step", build=build, applies=has_traces)
