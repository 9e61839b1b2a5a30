from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpdoctor.worker.ablations.cached_device import CachedDevice

DEVICE = torch.device("cuda", 0)


def context(batches_bytes: int) -> Any:
    """Return what is known of a script that trains on a GPU with batches of which all kept ones take so much."""
    return SimpleNamespace(
        wrapping=SimpleNamespace(parameters=lambda: [SimpleNamespace(is_cuda=True, device=DEVICE)]),
        tally=SimpleNamespace(loaders=lambda: frozenset({0})),
        replay=SimpleNamespace(unfit=lambda _: None, num_bytes=lambda _: batches_bytes),
    )


@pytest.mark.parametrize(("batches_bytes", "said"), [(80, None), (81, "101 B of the GPU's memory needed")])
def test_batches_must_fit_beside_the_most_that_training_took(
    monkeypatch: pytest.MonkeyPatch, batches_bytes: int, said: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 540)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 500)
    found = CachedDevice().unfit(context(batches_bytes))
    assert found is None if said is None else found is not None and found.startswith(said) and "100 B" in found
