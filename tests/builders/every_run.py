"""Every kind of run that whatever shows a run must be able to show: measured, traced, failed, empty, hostile."""

from __future__ import annotations

from tests.builders import diagnosed_runs, runs, traced_runs

EVERY_RUN = (
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
    traced_runs.unknown_communication,
    traced_runs.partly_unknown_communication,
    traced_runs.traced_profile,
    diagnosed_runs.diagnosed_run,
    diagnosed_runs.hostile_findings,
)
