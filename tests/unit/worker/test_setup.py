from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from dpdoctor.worker import setup


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(1)), float(np.random.random()), random.random()


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_seeds_make_all_random_numbers_repeat(seed: int) -> None:
    setup.seed_all(seed)
    first = drawn()
    assert drawn() != first
    setup.seed_all(seed)
    assert drawn() == first


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own name")
def test_a_cpu_is_named_with_its_threads() -> None:
    assert setup.device_name(1).startswith("CPU (")
    assert setup.device_name(1).endswith("), 1 thread")
    assert setup.device_name(8).endswith("), 8 threads")
    assert setup.devices() == ()
