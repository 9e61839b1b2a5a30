"""What one hook costs on this machine, so that a run can say what watching it cost."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import HookCost
from dpdoctor.worker.timing.steady_tally import SteadyTally
from dpdoctor.worker.timing.tally import Tally
from dpdoctor.worker.wrap.redirect import Redirect, Watch

# Between two hooks a step's own work runs and drives them out of the caches: reading this much does the same. Hooks
# timed back to back look five times cheaper than they are in a script (tests/benchmarks/observer_cost.py shows it).
EVICTED_BYTES = 16_000_000
ROUNDS = 11


def hook_cost(clock: Callable[[], int]) -> HookCost:
    """Return what one hook takes, the median of some, measured on the forward's, with cold caches."""
    return HookCost(_cost_ns(clock, SteadyTally(patience=1)), _cost_ns(clock, Tally()))


def _cost_ns(clock: Callable[[], int], tally: Tally) -> float:
    forward = Redirect(nn.Identity(), lambda x: x, Watch(PhaseClock(clock), tally))
    # Mapped, not from malloc: glibc takes a large piece that is freed for a sign that more come, and keeps their memory
    # (mallopt(3), M_MMAP_THRESHOLD), which makes the script's own large tensors faster than they are without us.
    tensor, others = torch.zeros(1), np.frombuffer(mmap.mmap(-1, EVICTED_BYTES), np.float64)
    costs = []
    for _ in range(ROUNDS):
        others.sum()
        begin = clock()
        forward(tensor)
        costs.append(clock() - begin)
        tally.backward()
        tally.optimizer_stepped()
        tally.lap()
    return statistics.median(costs)
