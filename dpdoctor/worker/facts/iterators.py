"""What beginning to iterate a loader costs: workers are started, a sampler drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.facts.evaluations import Evaluations
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder


def watch_iterators(
    patches: Patches, clock: Callable[[], int], phases: PhaseClock, recorder: Recorder, evaluations: Evaluations
) -> None:
    """Record how long DataLoader.__iter__ takes, and tell `evaluations` when loaders are iterated.

    Goes on top of what watches the loaders, which numbers their iterators. Other threads than the one that trains are
    left out: it does not wait for them here.
    """
    begin = vars(DataLoader)["__iter__"]

    @functools.wraps(begin)
    def timed_iter(loader: DataLoader[Any]) -> Any:
        if phases.is_elsewhere():
            return begin(loader)
        evaluations.iterates()
        began_ns = clock()
        iterator = begin(loader)
        duration_ns = clock() - began_ns
        number = str(getattr(iterator, "dpdoctor_loader", ""))
        recorder.event("iterator", at_ns=began_ns, duration_ns=duration_ns, detail=number)
        return iterator

    patches.replace(DataLoader, "__iter__", timed_iter)
