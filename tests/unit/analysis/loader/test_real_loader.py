"""The simulation against torch's own DataLoader, on the fetch times that its workers really took."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dpdoctor.analysis.loader.simulate import Cores, Setting, Times, simulate

pytestmark = pytest.mark.measured

# Taken are fewer than there are: the end, where workers have nothing more to do, is not simulated.
NUM, TAKEN = 60, 24
COMPUTE_S = 0.03
# Every fourth takes eight times as long: the order of delivery matters.
SLEEPS_S = [0.2 if index % 4 == 3 else 0.025 for index in range(NUM)]


class Sleeping(Dataset[torch.Tensor]):
    """Sleeps, and says how long that took."""

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = time.perf_counter()
        time.sleep(SLEEPS_S[index])
        return torch.tensor(time.perf_counter() - begin, dtype=torch.float64)


# Twice as many batches ahead, or delivery in another order, takes a third less or more.
@pytest.mark.parametrize(
    ("num_workers", "prefetch_factor", "in_order"), [(2, 1, True), (3, 1, True), (3, 2, True), (2, 1, False)]
)
def test_it_takes_as_long_as_the_simulation_says(num_workers: int, prefetch_factor: int, in_order: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores; they sleep
        loader = DataLoader(
            Sleeping(),
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            in_order=in_order,
        )
        batches = iter(loader)
    fetch, compute = [float(next(batches))], [0.0]
    begin = time.perf_counter()
    while len(fetch) < TAKEN:
        fetch.append(float(next(batches)))
        computing = time.perf_counter()
        time.sleep(COMPUTE_S)
        compute.append(time.perf_counter() - computing)
    took_s = time.perf_counter() - begin
    # Out of order, batches say how long they took, but not whose they are.
    times = Times(fetch=fetch if in_order else SLEEPS_S, compute=compute)
    setting = Setting(num_workers=num_workers, prefetch_factor=prefetch_factor, in_order=in_order)
    outcome = simulate(times, setting, Cores(num=1000), num_batches=TAKEN - 1, settle=1)
    assert outcome.step * (TAKEN - 1) == pytest.approx(took_s, rel=0.2)
