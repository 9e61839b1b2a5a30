"""Trains a small model from a loader of one of three kinds; for tests/benchmarks/loader_prediction.py.

fixed: every batch takes as long to compute. lognormal: documents have lognormal lengths, and a batch takes as long as
its four are. io: every image waits for a disk, and computes next to nothing.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 256
# Sorts so many random numbers at a time: plain computing in one thread.
CHUNK = 20_000


def compute(chunks, rng):
    """Compute for a time in proportion to `chunks` and return a few numbers."""
    for _ in range(chunks):
        numbers = np.sort(rng.random(CHUNK))
    return numbers[:: CHUNK // WIDTH][:WIDTH].astype(np.float32)


class Fixed(Dataset):
    """Items that all take as long."""

    def __len__(self):
        return 8000

    def __getitem__(self, index):
        return compute(2, np.random.default_rng(index))


class Documents(Fixed):
    """Items whose lengths are lognormal, 6 chunks in the median."""

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return compute(1 + int(6 * rng.lognormal(sigma=0.8)), rng)


class OnDisk(Fixed):
    """Items that are waited for: 1 ms and as much again in the mean."""

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        time.sleep(0.001 + rng.exponential(0.001))
        return rng.random(WIDTH, dtype=np.float32)


KINDS = {"fixed": (Fixed, 16), "lognormal": (Documents, 4), "io": (OnDisk, 16)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--prefetch-factor", type=int)
    args = parser.parse_args()
    dataset, batch_size = KINDS[args.kind]
    loader = DataLoader(
        dataset(),
        batch_size=batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        prefetch_factor=args.prefetch_factor,
    )
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(nn.Linear(WIDTH, 512), *layers, nn.Linear(512, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100):
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), batch)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
