"""What watching a loader costs: time and CPU time per batch with and without, in alternating iterations of one process.

    python tests/benchmarks/loader_cost.py

Images of 28 x 28, about 25 us per item with a chain of two transforms, feed a LeNet-5 in batches of 32; once fetched by
the training thread, once by two workers. Watched means all that dpdoctor does to a loader: sharing out, phases, a
record per batch, a look into the transforms. Each pair of neighbouring iterations gives one ratio; printed are the
median ratios and their distribution-free 95% intervals. CPU time is that of the process and of its workers: on a
shared machine it varies less than the time on the wall. Bound: 1%.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpdoctor.analysis.base.stats import median_interval
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder
from dpdoctor.worker.timing.tally import Tally

BATCH = 32


class Normalize:
    """Brings an image of bytes to mean 0 and deviation 1."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float().sub_(33.3).div_(78.6)


class AddChannel:
    """Gives a grey image the dimension that convolutions expect."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.unsqueeze(0)


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images in memory, and the chain of transforms that they go through."""

    def __init__(self, size: int) -> None:
        self.data = torch.randint(256, (size, 28, 28), dtype=torch.uint8)
        self.transforms = [Normalize(), AddChannel()]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        item = self.data[index]
        for transform in self.transforms:
            item = transform(item)
        return item, index % 10


def lenet() -> nn.Sequential:
    """Return the network of samples/mnist_lenet.py."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


@dataclass(frozen=True)
class Cost:
    """Seconds per batch, on the wall and of CPU."""

    wall_s: float
    cpu_s: float


def _workers_cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Training:
    """Trains for one iteration at a time, watched or not."""

    def __init__(self, num_workers: int, num_batches: int, directory: str) -> None:
        self._loader = DataLoader(Images(num_batches * BATCH), batch_size=BATCH, shuffle=True, num_workers=num_workers)
        self._model = lenet()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-6)
        self._patches = Patches()
        self._recorder = Recorder(Path(directory), time.monotonic_ns)

    def iteration(self, *, watched: bool) -> Cost:
        """Return what a batch takes from the first one of an iteration to its last."""
        phases = PhaseClock(time.monotonic_ns)
        if watched:
            Loaders("per-device", 0, 1, seed=0).watch(
                self._patches, phases, Tally(), _go_on, _fail, clock=time.monotonic_ns, log=self._recorder
            )
        batches, before = iter(self._loader), _workers_cpu_s()
        next(batches)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for images, labels in batches:
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(images), labels).backward()
            self._optimizer.step()
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        self._patches.undo()
        # As at a window's edge, outside of what is timed.
        self._recorder.flush()
        # Its workers have ended with it, and are counted with all that they did.
        del batches
        gc.collect()
        cpu_s += _workers_cpu_s() - before
        return Cost(wall_s=wall_s / (len(self._loader) - 1), cpu_s=cpu_s / (len(self._loader) - 1))


def _go_on() -> None:
    """Let the script continue, as Ending.check does until enough is recorded."""


def _fail(reason: str) -> NoReturn:
    raise SystemExit(reason)


def measure(num_workers: int, pairs: int, num_batches: int) -> None:
    """Print the cost with so many workers."""
    with tempfile.TemporaryDirectory() as directory:
        training = Training(num_workers, num_batches, directory)
        training.iteration(watched=True)
        pairs_found: list[dict[bool, Cost]] = []
        for pair in range(pairs):
            order = (False, True) if pair % 2 else (True, False)
            pairs_found.append({watched: training.iteration(watched=watched) for watched in order})
    plain = statistics.median(found[False].wall_s for found in pairs_found)
    wall = _words([found[True].wall_s / found[False].wall_s for found in pairs_found])
    cpu = _words([found[True].cpu_s / found[False].cpu_s for found in pairs_found])
    print(
        f"{num_workers} workers, {1e3 * plain:.2f} ms per batch: time {wall}, CPU time {cpu}; {pairs} pairs", flush=True
    )


def _words(ratios: list[float]) -> str:
    figure = median_interval(ratios, "ratio")
    return f"x {figure.value:.4f} ({figure.low:.4f} to {figure.high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--batches", type=int, default=60, help="per iteration")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for num_workers in (0, 2):
        measure(num_workers, args.pairs, args.batches)


if __name__ == "__main__":
    main()
