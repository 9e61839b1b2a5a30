"""The indices a loader may ask its dataset for: those of torch's own samplers are known, of others what they gave."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from dpdoctor.worker.data.shard import length_of

# Of others the latest are remembered: enough for as many batches as are made up, of usual ones.
MOST_GIVEN = 4096
_GIVEN = "dpdoctor_given"
# They give the whole numbers below the length of what they hold by this name.
_HOLDS = {SequentialSampler: "data_source", RandomSampler: "data_source", DistributedSampler: "dataset"}


def given(loader: DataLoader[Any]) -> deque[Any] | None:
    """Return where the indices that the sampler of a loader gives are to be noted; None: nowhere."""
    if loader.batch_size is None or type(loader.sampler) in _HOLDS:
        return None
    noted: deque[Any] = vars(loader).setdefault(_GIVEN, deque(maxlen=MOST_GIVEN))
    return noted


def possible(loader: DataLoader[Any]) -> Sequence[Any]:
    """Return indices that the loader's dataset may be asked for; empty: none are known."""
    held = _HOLDS.get(type(loader.sampler))
    if held is not None:
        return range(length_of(getattr(loader.sampler, held)) or 0)
    return list(vars(loader).get(_GIVEN, ()))
