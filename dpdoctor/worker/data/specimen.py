"""What a batch of the script's is made of, without its data: enough to make one that takes as long to move."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from dpdoctor.worker.base import structure

_PLAIN = (str, bytes, int, float, bool, complex, type(None))


class UnknownContentError(Exception):
    """A batch holds something that cannot be made from a description."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Specimen:
    """One batch of an iterator. `shared`: its workers make tensors in shared memory, as default_collate does."""

    content: Any
    shared: bool
    pin_memory: bool

    def make(self) -> Any:
        """Return a new batch like the one described, on the CPU; its tensors are zeros."""
        return _make(self.content, shared=self.shared)


def describe(batch: Any, iterator: Any) -> Specimen | None:
    """Return the description of a batch from one of torch's iterators; None: it holds other types than known ones."""
    try:
        content = _describe(batch)
    except UnknownContentError:
        return None
    return Specimen(content, iterator._collate_fn is default_collate, iterator._pin_memory)


def _describe(value: Any) -> Any:
    if type(value) is torch.Tensor and structure.is_dense(value) and value.is_cpu and not value.is_quantized:
        return _Tensor(value.shape, value.dtype)
    if type(value) in (list, tuple):
        return type(value)(map(_describe, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(map(_describe, value))
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return {_describe(key): _describe(item) for key, item in dict.items(value)}
    if type(value) in _PLAIN:
        return value
    raise UnknownContentError


def _make(content: Any, *, shared: bool) -> Any:
    if isinstance(content, _Tensor):
        made = torch.zeros(content.shape, dtype=content.dtype)
        return made.share_memory_() if shared else made
    if isinstance(content, dict):
        return {key: _make(item, shared=shared) for key, item in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(_make(item, shared=shared) for item in content)
    return content
