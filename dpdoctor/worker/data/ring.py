"""Memory that a loader's workers share with the training process: what their last fetches took.

Nothing is pickled, nothing is sent beside the script's own batches, and nobody waits: a worker writes its record before
it sends the batch, the training process reads it after the batch has come.
"""

from __future__ import annotations

import mmap
import struct

from msgspec.structs import astuple

from dpdoctor.worker.data.fetches import UNKNOWN, Fetched

_KEYS = 2
_FIXED = len(Fetched.__struct_fields__) - 1


class Ring:
    """`depth` records for each of `num_workers` workers, made before they are forked; `num_transforms` times in each.

    A record is found by the generation of the worker's fetcher, from 1, and the number of the fetch, from 0.
    """

    def __init__(self, num_workers: int, depth: int, num_transforms: int) -> None:
        self._depth = depth
        self._record = struct.Struct(f"={_KEYS + _FIXED + num_transforms}q")
        self._zeros = (0,) * num_transforms
        self._memory = mmap.mmap(-1, num_workers * depth * self._record.size)

    def write(self, worker: int, generation: int, number: int, fetched: Fetched) -> None:
        """Keep what a fetch took, in place of the one `depth` fetches before it."""
        *fixed, transforms_ns = astuple(fetched)
        values = (generation, number, *fixed, *(transforms_ns or self._zeros))
        self._record.pack_into(self._memory, self._place(worker, number), *values)

    def read(self, worker: int, generation: int, number: int) -> Fetched:
        """Return what a fetch took; UNKNOWN when its record is not there."""
        found = self._record.unpack_from(self._memory, self._place(worker, number))
        if found[:_KEYS] != (generation, number):
            return UNKNOWN
        fixed = found[_KEYS : _KEYS + _FIXED]
        return Fetched(*fixed, found[_KEYS + _FIXED :])  # type: ignore[call-arg]

    def _place(self, worker: int, number: int) -> int:
        return (worker * self._depth + number % self._depth) * self._record.size
