"""Loaders of our own, apart from the script's: forked workers or none, and no part in how batches are shared out."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from dpdoctor.worker.data.shard import length_of

# Torch's own samplers give the whole numbers below the length of what they hold by this name.
_HOLDS = {SequentialSampler: "data_source", RandomSampler: "data_source", DistributedSampler: "dataset"}
# Of others the latest indices are remembered: enough for as many batches as are made up, of usual ones.
MOST_GIVEN = 4096
_GIVEN = "dpdoctor_given"
DAEMONIC = "a daemonic process, as multiprocessing calls it, may start no others"


class ApartLoader(DataLoader[Any]):
    """A loader whose batches no rank shares with others; random numbers that it draws itself are its own."""

    def __init__(self, dataset: Dataset[Any], *, num_workers: int = 1, **options: Any) -> None:
        super().__init__(
            dataset,
            num_workers=num_workers,
            multiprocessing_context=multiprocessing.get_context("fork") if num_workers else None,
            generator=torch.Generator(),
            **options,
        )

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def begin(self) -> Any:
        """Return an iterator that the script's hooks do not see; the caller shuts its workers down.

        Raises:
            OSError, RuntimeError: its workers cannot be started.
        """
        if self.num_workers and multiprocessing.current_process().daemon:
            raise RuntimeError(DAEMONIC)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a process with threads forks: so does every loader with workers
            return self._get_iterator()


def made_up(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    """Return the indices of so many batches as large as the script's; none where they cannot be made up.

    The script's sampler is not asked, and its random numbers have no part in it.
    """
    size = loader.batch_size
    if size is None or isinstance(loader.dataset, IterableDataset):
        return []
    indices = possible_indices(loader)
    chance = random.Random(0)
    return [chance.choices(indices, k=size) for _ in range(count)] if indices else []


def given_indices(loader: DataLoader[Any]) -> deque[Any] | None:
    """Return where the indices that the sampler of a loader gives are to be noted; None: nowhere."""
    if loader.batch_size is None or type(loader.sampler) in _HOLDS:
        return None
    noted: deque[Any] = vars(loader).setdefault(_GIVEN, deque(maxlen=MOST_GIVEN))
    return noted


def possible_indices(loader: DataLoader[Any]) -> Sequence[Any]:
    """Return indices that the loader's dataset may be asked for; empty: none are known."""
    held = _HOLDS.get(type(loader.sampler))
    if held is not None:
        return range(length_of(getattr(loader.sampler, held)) or 0)
    return list(vars(loader).get(_GIVEN, ()))


def last_line(error: Exception) -> str:
    """Return what was raised by or for a worker, in a line; torch puts the worker's own traceback before it."""
    line, name = (str(error).strip().splitlines() or [""])[-1], type(error).__name__
    return line if line.startswith(name) else f"{name}: {line}"


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the states of torch, numpy and random back afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
