"""Whether the script's dataset can be fetched from in a worker at all, tried apart from training.

The script's sampler is not asked, and its random numbers have no part in it.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from dpdoctor.worker.data.apart import ApartLoader, last_line, made_up

# Not the first alone: some fail only when they open their file anew.
BATCHES = 2
# In what torch says of a worker that raised, and of one that died.
_SIGNS = ("in DataLoader worker process", "exited unexpectedly")


def failure(loader: DataLoader[Any], limit_s: float) -> str:
    """Return what the dataset raised in a worker, or how that died, in a line; empty: nothing within `limit_s`."""
    indices = made_up(loader, BATCHES)
    if not indices:
        return ""
    apart = ApartLoader(
        loader.dataset,
        batch_sampler=indices,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        timeout=limit_s,
    )
    try:
        batches = apart.begin()
        try:
            for _ in indices:
                batches._next_data()
        finally:
            batches._shutdown_workers()
    except Exception as error:  # noqa: BLE001 - a dataset of the script's may raise anything
        # Else it was only slow, or could not be forked.
        return last_line(error) if any(sign in str(error) for sign in _SIGNS) else ""
    return ""
