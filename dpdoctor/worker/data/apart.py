"""Loaders of our own, apart from the script's: forked workers or none, and no part in how batches are shared out."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dpdoctor.worker.data.indices import possible


def made_up(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    """Return the indices of so many batches as large as the script's; none where they cannot be made up.

    The script's sampler is not asked, and its random numbers have no part in it.
    """
    size = loader.batch_size
    if size is None or isinstance(loader.dataset, IterableDataset):
        return []
    indices = possible(loader)
    chance = random.Random(0)
    return [chance.choices(indices, k=size) for _ in range(count)] if indices else []


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
        """Return an iterator that the script's hooks do not see; the caller shuts its workers down."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a process with threads forks: so does every loader with workers
            return self._get_iterator()
