"""Comparisons of every kind that a report must be able to show."""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis import Analysis, analyse
from dpdoctor.analysis.comparison import Comparison, compare
from dpdoctor.records import StepRecord
from tests.builders import diagnosed_runs, records, runs, traced_runs
from tests.builders.runs_to_compare import with_header
from tests.builders.specs import mode_spec, run

SLOWER_MS = (120, 1, 20, 48, 5, 8)


def with_ddp(phases_ms: tuple[int, ...], *, batch: int = 32, name: str = "other") -> Analysis:
    """Return single as in `runs.cpu_run` and DDP on two ranks whose steps are these."""
    ddp = [runs.rank(_batches(phases_ms, batch), index=index, world_size=2) for index in range(2)]
    modes = {"single": [runs.launch(runs.rank())], "ddp": [runs.launch(*ddp, mode="ddp")]}
    found = records.run(modes, {"ddp": 2})
    return analyse(replace(found, path=found.path.with_name(name)))


def _batches(phases_ms: tuple[int, ...], batch: int) -> list[StepRecord]:
    return [replace(step, samples_drawn=batch, samples_entered=batch) for step in runs.steps(phases_ms)]


def slower() -> Comparison:
    """Return DDP that waits longer for data, and one device that is alike."""
    return compare([with_ddp((60, 1, 20, 48, 5, 8), name="before"), with_ddp(SLOWER_MS, name="after")])


def alike() -> Comparison:
    """Return two runs that are the same."""
    return compare([runs.cpu_run(), runs.cpu_run()])


def calibrated() -> Comparison:
    """Return two runs of a workload whose launches are known to differ by little."""
    run = runs.cpu_run().run
    spread = dict.fromkeys(run.modes, 0.01)
    known = analyse(replace(run, header=replace(run.header, launch_spread=spread)))
    return compare([known, known])


def larger_batch() -> Comparison:
    """Return DDP with twice the batch in twice the time, on another machine and another torch."""
    other = with_ddp(SLOWER_MS, batch=64, name="after")
    fingerprint = replace(other.run.header.fingerprint, cores=8, packages={"torch": "2.16.0", "torchvision": "0.29.2"})
    return compare([with_ddp((60, 1, 20, 48, 5, 8), name="before"), with_header(other, fingerprint=fingerprint)])


def repeated() -> Comparison:
    """Return two runs of two launches of each mode."""
    return compare([runs.repeated_run(), runs.repeated_run()])


def three() -> Comparison:
    """Return one run and two others, one of which lacks a mode."""
    return compare([runs.cpu_run(), with_ddp(SLOWER_MS), analyse(records.run({"single": [runs.launch(runs.rank())]}))])


def failed() -> Comparison:
    """Return a run against one in which every mode failed."""
    return compare([runs.cpu_run(), runs.failed_run()])


def nothing() -> Comparison:
    """Return two runs without modes."""
    return compare([runs.empty_run(), runs.empty_run()])


def traces() -> Comparison:
    """Return traces in which a rank is late, and one rank that takes twice as long for a step."""
    busy = traced_runs.device(of=traced_runs.breakdown(90, 20, 4, 1, 85))
    (digest,) = traced_runs.late_rank(1, 0)
    return compare([traced_runs.late_run(), traced_runs.trace_run(replace(digest, devices=(busy,)))])


def traces_and_profile() -> Comparison:
    """Return traces against a run of a script."""
    return compare([traced_runs.late_run(), runs.cpu_run()])


def traced() -> Comparison:
    """Return two runs of a script that left traces."""
    return compare([traced_runs.traced_profile(), traced_runs.traced_profile()])


def diagnosed() -> Comparison:
    """Return a run without findings and ablations against one with them."""
    return compare([runs.cpu_run(), diagnosed_runs.diagnosed_run()])


def mended() -> Comparison:
    """Return a run with findings against one without."""
    return compare([diagnosed_runs.diagnosed_run(), runs.cpu_run()])


def hostile() -> Comparison:
    """Return two runs in which every text tries to break out of where it is shown."""
    return compare([diagnosed_runs.hostile_findings(), runs.hostile_run(), traced_runs.hostile_traces()])


def named(base: str, other: str) -> Comparison:
    """Return runs of two different scripts of these names."""
    launches = {mode_spec("single"): [runs.launch(runs.rank())]}
    one, two = (analyse(run(launches, script=name, args=())) for name in (base, other))
    fingerprint = replace(two.run.header.fingerprint, script_sha256="cd" * 32)
    return compare([one, with_header(two, fingerprint=fingerprint)])


EVERY = (
    slower,
    alike,
    larger_batch,
    repeated,
    three,
    failed,
    nothing,
    traces,
    traces_and_profile,
    traced,
    diagnosed,
    mended,
    hostile,
)
