"""What is recorded inside of the script's loaders: one line of loader.jsonl per batch, on each rank.

All of a rank's processes read one monotonic clock, so that workers' times and the training thread's share an axis.
"""

from __future__ import annotations

import msgspec

# The "worker" of a batch that the training thread fetched by itself.
IN_PROCESS = -1

# Why a loader is not seen from inside.
PAST_ITER = "a subclass of DataLoader makes iterators of its own"
FRESH_WORKERS = "its workers are fresh interpreters, not forked: what they do is not seen from inside"


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One batch, from its fetch to its arrival in the training loop; times in ns.

    Attributes:
        loader: place in Conversion.loaders.
        iteration: of that loader, from 0; an epoch, mostly.
        batch: number within the iteration, from 0.
        worker: that fetched it, or IN_PROCESS.
        step: the one during which it was asked for.
        asked_ns: when the training thread asked; `wait_ns` until it had the batch.
        ready: batches that lay ready when it asked; -1: not known.
        outstanding: batches that workers were still to deliver then, ready ones left out.
        opening_ns: what beginning the iteration took, starting its workers included; 0 but for the iteration's first.
        fetch_begin_ns, fetch_ns: of dataset and collate together, in the worker; 0: not known.
        cpu_ns: CPU time of that thread meanwhile; other threads of the worker are not in it.
        queued_ns: the part of `fetch_ns` in which that thread could run and had no core; 0, too, where no kernel tells.
        gap_queued_ns: likewise of the training thread, from the batch before until it asked for this one.
        collate_ns: the part of `fetch_ns` that collate took.
        num_bytes: of all tensors in the batch; 0: not known, as of most batches.
    """

    loader: int
    iteration: int
    batch: int
    worker: int
    step: int
    asked_ns: int
    wait_ns: int
    ready: int = -1
    outstanding: int = 0
    opening_ns: int = 0
    fetch_begin_ns: int = 0
    fetch_ns: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    gap_queued_ns: int = 0
    collate_ns: int = 0
    num_bytes: int = 0


class TransformTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time spent in one callable of a chain of transforms, over the items that were looked at.

    Attributes:
        loader: place in Conversion.loaders.
        name: of its class or function; `position` in the chain tells two of one name apart.
        calls: items that were looked at; `total_ns` is their wall time.
        items_ns: wall time of the same items' whole `dataset[i]`, whose part total_ns is.
    """

    loader: int
    position: int
    name: str
    calls: int
    total_ns: int
    items_ns: int


class HandOff(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs to move one batch from a worker to the training thread, measured apart from training.

    Attributes:
        send_ns, receive_ns: the worker's and the training thread's share while the worker does nothing else; medians
            over `n` batches of `num_bytes`.
        num_tensors: of a batch; 0 where it has none, and where nobody counted them.
        failure: what the script's dataset raised in a worker. Empty: nothing, or nobody tried.
    """

    loader: int
    n: int
    num_bytes: int
    send_ns: int
    receive_ns: int
    failure: str = ""
    num_tensors: int = 0
