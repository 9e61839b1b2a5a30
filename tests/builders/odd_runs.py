"""Analyses of runs that did not go as meant: cut off, with a rank missing, with a single step."""

from __future__ import annotations

from dpdoctor.analysis import Analysis, analyse
from tests.builders import records, runs, traced_runs
from tests.builders.specs import MS

CTRL_C = "Ctrl-C in stage measure, after 20 steps"
KILLED = "rank 1 was killed by SIGKILL before it began (see its stderr.log)"
TOO_SHORT = "the script ended after 1 step, before a window could be measured"


def interrupted_run() -> Analysis:
    """Return single, a DDP that was ended by hand after it had been measured, and an FSDP that was not begun."""
    ddp = [
        runs.rank(index=index, world_size=2, status="interrupted", reason="ended by the launcher", stage="terminated")
        for index in range(2)
    ]
    modes = {
        "single": [runs.launch(runs.rank())],
        "ddp": [runs.launch(*ddp, mode="ddp", status="interrupted", reason=CTRL_C)],
        "fsdp": [],
    }
    return analyse(records.run(modes, {"ddp": 2, "fsdp": 2}))


def killed_rank_run() -> Analysis:
    """Return single, and a DDP on three ranks of which rank 1 died before it wrote anything."""
    left = [runs.rank(runs.steps(windows=1), index=index, world_size=3, status="failed") for index in (0, 2)]
    ddp = runs.launch(*left, mode="ddp", status="failed", reason=KILLED, failed_rank=1, stderr_tail=("Killed",))
    return analyse(records.run({"single": [runs.launch(runs.rank())], "ddp": [ddp]}, {"ddp": 3}))


def lost_rank_run() -> Analysis:
    """Return single, and a DDP that went well but of whose second rank nothing is here: it was not copied, say."""
    modes = {"single": [runs.launch(runs.rank())], "ddp": [runs.launch(runs.rank(world_size=2), mode="ddp")]}
    return analyse(records.run(modes, {"ddp": 2}))


def lost_trace() -> Analysis:
    """Return traces of three ranks of four."""
    return traced_runs.trace_run(*traced_runs.late_rank()[:3])


def one_step_run() -> Analysis:
    """Return a script that took one step."""
    step = records.step(100, window=0, begin_ns=runs.BEGIN_NS, counted=False)
    window = records.window(100, window=0, kind="warmup", complete=False)
    rank = records.rank(
        [step], [window], status="failed", stage="warmup", reason=TOO_SHORT, conversion=runs.conversion()
    )
    return analyse(records.run({"single": [runs.launch(rank, status="failed", reason=TOO_SHORT)]}))


def one_step_measured() -> Analysis:
    """Return a mode whose only measured window has a single counted step."""
    of = runs.steps(windows=2)[: runs.PER_WINDOW + 2]
    return analyse(records.run({"single": [runs.launch(runs.rank(of))]}))


def silent_run() -> Analysis:
    """Return a rank that left an empty directory, 100 ms after it was started."""
    rank = runs.Rank(index=0, record=None, steps=(), windows=(), events=(), trace=None)
    end_ns = runs.BEGIN_NS - 400 * MS
    return analyse(
        records.run({"single": [runs.launch(rank, status="failed", reason="rank 0 was killed", end_ns=end_ns)]})
    )
