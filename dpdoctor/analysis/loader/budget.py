"""Which settings of a loader this machine has the cores and the memory for, all ranks counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpdoctor.analysis.loader import facts
from dpdoctor.analysis.loader.feed import Feed
from dpdoctor.analysis.loader.measured import Measured, ranks_of_a_node
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.records import Launch, Sample
from dpdoctor.spec import RunHeader

PREFETCH_FACTORS = (1, 2, 4, 8)
# Every number of workers up to here, then steps of about a quarter: what lies between differs by less than the model.
ALL_UP_TO = 8
FURTHER = (10, 12, 16, 20, 24, 32, 40, 48, 64)
# A fetch that seems to take no core at all takes this part of one.
LEAST_FETCH_CORES = 0.05
# Shared memory for a batch: a freed one may still be mapped while the next is being made.
SHM_MARGIN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes on the fullest node. None: not known, and so no limit.

    Attributes:
        ranks: that share the node.
        memory: free for more workers; `per_worker` is what one may take at most.
        shm: free for batches; `per_batch` is what one takes.
    """

    ranks: int
    memory: float | None
    per_worker: float
    shm: float | None
    per_batch: float

    def has_room(self, setting: Setting) -> bool:
        """Return whether every rank can have its workers with all their batches."""
        workers = self.ranks * setting.num_workers
        fits_memory = self.memory is None or workers * self.per_worker <= self.memory
        batches = workers * setting.prefetch_factor
        return fits_memory and (self.shm is None or batches * self.per_batch * SHM_MARGIN <= self.shm)


def settings(measured: Measured, budget: Budget) -> list[Setting]:
    """Return the settings to predict, fewest workers first; the present one is among them.

    Workers that compute are no more than the cores; those that wait for I/O may be.
    """
    most = measured.cores.num / max(LEAST_FETCH_CORES, measured.cores.fetch)
    numbers = [n for n in (*range(1, ALL_UP_TO + 1), *FURTHER) if n <= max(1.0, most)]
    in_order = measured.setting.in_order
    wanted = {Setting(num_workers=0, prefetch_factor=measured.setting.prefetch_factor, in_order=in_order)}
    for number in numbers:
        for factor in {*PREFETCH_FACTORS, measured.setting.prefetch_factor}:
            wanted.add(Setting(num_workers=number, prefetch_factor=factor, in_order=in_order))
    found = {setting for setting in wanted if budget.has_room(setting)} | {measured.setting}
    return sorted(found, key=lambda setting: (setting.num_workers, setting.prefetch_factor))


def budget(feed: Feed, launch: Launch, header: RunHeader) -> Budget:
    """Return what the node's samplers saw of its memory while the mode ran."""
    host = [sample for sample in launch.samples if sample.source == "host"]
    used = _most(host, "memory_used_bytes")
    workers = feed.loader.num_workers * ranks_of_a_node(launch)
    per_worker = _per_worker(launch)
    # Workers that run already are in what is used.
    held = workers * per_worker
    shm_total, shm_used = _most(host, "shm_total_bytes"), _most(host, "shm_used_bytes")
    return Budget(
        ranks=ranks_of_a_node(launch),
        memory=None if used is None else header.fingerprint.memory_bytes - used + held,
        per_worker=per_worker,
        shm=None if shm_total is None or shm_used is None else shm_total - shm_used,
        per_batch=facts.batch_bytes(feed) or 0.0,
    )


def _per_worker(launch: Launch) -> float:
    """Return the bytes of one worker; of a rank's process before there are workers, which share its memory at first."""
    workers = [
        s.values["memory_bytes"] / s.values["num_processes"] for s in launch.samples if s.source.endswith(".workers")
    ]
    ranks = [s.values["memory_bytes"] for s in launch.samples if s.source.removeprefix("rank").isdigit()]
    return max(workers or ranks, default=0.0)


def _most(samples: Iterable[Sample], name: str) -> float | None:
    return max((sample.values[name] for sample in samples if name in sample.values), default=None)
