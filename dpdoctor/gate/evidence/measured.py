"""What one launch of a mode measured: its seconds per step, how many steps stand behind them, their batch."""

from __future__ import annotations

from statistics import fmean, median

from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.records import Launch

# Fewer steps than this make a median that moves with single steps.
LEAST_STEPS = 20


def seconds_per_step(launch: LaunchFacts) -> float | None:
    """Return the mean of the faster half of the launch's measured windows, in seconds per step; None: there is none.

    Whatever else a machine does makes windows slower, never faster, so the faster half spreads less from launch to
    launch than the median or the mean of all. Of windows, not of steps: what holds up one step in ten is in every
    window, but not in the faster half of the steps; and on a GPU only the edges of windows wait for the device.
    """
    found = sorted(window.seconds_per_step for window in launch.windows())
    return fmean(found[: (len(found) + 1) // 2]) if found else None


def shown_seconds_per_step(launch: LaunchFacts) -> float | None:
    """Return the seconds per step that a report shows of the launch, those of all its windows; None: there are none."""
    found = [window.step() for window in launch.windows()]
    return sum(seconds for seconds, _ in found) / sum(steps for _, steps in found) if found else None


def num_steps(launch: LaunchFacts) -> int:
    """Return the number of steps that `seconds_per_step` is taken from."""
    return sum(len(window.ranks[0].steady) for window in launch.windows())


def typical_batch(launch: LaunchFacts) -> int | None:
    """Return the samples of all ranks in a step; None: nothing was measured, or batches are of many sizes.

    The median, because the last batch of an epoch is smaller, and how many of those are seen varies. Where some are
    larger, too, batches are put together by what is in them, and no two launches see the same.
    """
    per_rank = [
        [step.samples_drawn or step.samples_entered for w in launch.windows() for step in w.ranks[index].steady]
        for index in range(len(launch.ranks))
    ]
    if not per_rank or not all(per_rank) or any(max(samples) > median(samples) for samples in per_rank):
        return None
    return sum(round(median(samples)) for samples in per_rank)


def recompilations(launch: LaunchFacts) -> int:
    """Return how often torch.compile compiled while it was measured, on the rank where it did most."""
    return max((_compiled(launch, index) for index in range(len(launch.ranks))), default=0)


def _compiled(launch: LaunchFacts, index: int) -> int:
    windows = [found.ranks[index].window for found in launch.windows()]
    events = [event.at_ns for event in launch.ranks[index].events if event.kind == "compile"]
    return sum(any(window.begin_ns <= at < window.end_ns for window in windows) for at in events)


def compiles(launch: Launch) -> bool:
    """Return whether the script uses torch.compile."""
    return any(event.kind == "compile" for rank in launch.ranks for event in rank.events)
