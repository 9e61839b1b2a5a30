"""What watching costs: steps with and without dpdoctor's hooks, in alternating windows of one process.

    python tests/benchmarks/observer_cost.py

A script of one linear stack is wrapped and proved as in a real `single` run; inside its measured window the hooks are
then taken out and put back, window by window. Each pair of neighbouring windows gives one ratio; printed are the median
ratio and its distribution-free 95 % interval. Bounds: 1 % of a 20 ms step, 5 % of a 2 ms step.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor.analysis.stats import median_interval
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.spec import ModeSpec, Recording, RunSpec, WorkerTask
from dpdoctor.worker.launched import Place
from dpdoctor.worker.rank import Rank

BATCH = 16
WARMUP_STEPS = 20


def steps(model: nn.Module, width: int) -> Iterator[None]:
    """Train forever; yield after every step."""
    data = TensorDataset(torch.randn(6400, width), torch.randn(6400, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            yield


def stack(depth: int, width: int) -> nn.Sequential:
    """Return `depth` linear layers, each with an activation."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


def depth_for(step_s: float, width: int) -> int:
    """Return the number of layers whose step takes about `step_s` seconds here."""
    training = steps(stack(8, width), width)
    for _ in range(WARMUP_STEPS):
        next(training)
    begin = time.perf_counter()
    for _ in range(WARMUP_STEPS):
        next(training)
    return max(1, round(8 * step_s / ((time.perf_counter() - begin) / WARMUP_STEPS)))


def make_rank(directory: str) -> Rank:
    """Return a rank in mode single whose measured window never ends."""
    mode = ModeSpec(name="single", world_size=1, num_devices=1, distributed=False, batch_rule="per-device")
    spec = RunSpec(
        target="benchmark",
        cwd=directory,
        modes=(mode,),
        requested_modes=("single",),
        threads_per_device=1,
        recording=Recording(warmup=WARMUP_STEPS, steps=10_000_000),
    )
    task = WorkerTask(spec=spec, mode=mode, directory=directory)
    heartbeat = Heartbeat(Path(directory), os.getpid(), time.monotonic_ns)
    return Rank(task, Place(rank=0, local_rank=0, world_size=1), Path(directory), heartbeat, None)


class Switch:
    """Takes the hooks out and puts them back: patched attributes, the wrapped call, the optimizers' hooks."""

    def __init__(self, rank: Rank, model: nn.Module) -> None:
        self._model = model
        self._redirect = model._compiled_call_impl
        self._attributes: list[tuple[Any, str, Any, Any]] = [
            (owner, name, vars(owner)[name], original)
            for (_, name), (owner, original) in rank._patches._originals.items()
        ]
        self._hooks = [
            (hooks, dict(hooks))
            for hooks in (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
        ]

    def set(self, *, watched: bool) -> None:
        """Switch to watched or plain steps."""
        for owner, name, patched, original in self._attributes:
            setattr(owner, name, patched if watched else original)
        self._model._compiled_call_impl = self._redirect if watched else None
        for hooks, saved in self._hooks:
            hooks.clear()
            hooks.update(saved if watched else {})


def measure(step_s: float, pairs: int, window_s: float) -> None:
    """Print the cost of watching steps of about `step_s` seconds."""
    torch.set_num_threads(1)
    width = 128
    model = stack(depth_for(step_s, width), width)
    with tempfile.TemporaryDirectory() as directory:
        rank = make_rank(directory)
        training = steps(model, width)
        # Warm-up, the proof, the first uncounted step: from here on the hooks do what they do in a measured window.
        for _ in range(WARMUP_STEPS + 5):
            next(training)
        switch = Switch(rank, model)
        window_steps = max(4, round(window_s / step_s))
        ratios, plain_s = [], []
        for pair in range(pairs):
            seconds = {}
            for watched in (False, True) if pair % 2 else (True, False):
                switch.set(watched=watched)
                next(training)
                begin = time.perf_counter()
                for _ in range(window_steps):
                    next(training)
                seconds[watched] = (time.perf_counter() - begin) / window_steps
                # As at a window's edge, outside of what is timed.
                rank._recorder.flush()
            ratios.append(seconds[True] / seconds[False])
            plain_s.append(seconds[False])
        estimate = rank._steplog.cost_ns
        switch.set(watched=True)
        rank._patches.undo()
    figure = median_interval(ratios, "ratio")
    plain = sorted(plain_s)[len(plain_s) // 2]
    own = "" if estimate is None else f"; dpdoctor's own estimate {100 * estimate * 1e-9 / plain:.2f} %"
    print(
        f"step {1e3 * plain:.2f} ms: watching costs {100 * (figure.value - 1):+.2f} % "
        f"({100 * (figure.low - 1):+.2f} to {100 * (figure.high - 1):+.2f}), {pairs} pairs of {window_steps} steps{own}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--window", type=float, default=0.2, help="seconds per window")
    args = parser.parse_args()
    for step_s in (0.020, 0.002):
        measure(step_s, args.pairs, args.window)


if __name__ == "__main__":
    main()
