"""Loaders of our own, apart from the script's: one forked worker, and no part in how batches are shared out."""

from __future__ import annotations

import multiprocessing
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


class ApartLoader(DataLoader[Any]):
    """A loader with one worker, whose batches no rank shares with others and whose random numbers are its own."""

    def __init__(self, dataset: Dataset[Any], **options: Any) -> None:
        fork = multiprocessing.get_context("fork")
        super().__init__(dataset, num_workers=1, multiprocessing_context=fork, generator=torch.Generator(), **options)

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def begin(self) -> Any:
        """Return an iterator that the script's hooks do not see; the caller shuts its worker down."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a process with threads forks: so does every loader with workers
            return self._get_iterator()
