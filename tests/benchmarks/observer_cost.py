"""What watching costs: steps with and without dpdoctor's hooks, in turns of windows of one process.

    python tests/benchmarks/observer_cost.py
    python tests/benchmarks/observer_cost.py --native  # two ranks of DistributedDataParallel

A script of one linear stack, as deep as makes its steps last 20 ms and 2 ms here, is wrapped and proved as in a real
`single` run; inside its measured window the hooks are then taken out and put back, window by window: plain steps are
without any, unwatched ones are those of the ablation of that name, by which the rate of a native script is told. Each
turn gives one ratio of either kind to plain ones; printed are the median ratio and its distribution-free 95% interval,
of wall time and of CPU time. Bounds: 1% of a 20 ms step, 5% of a 2 ms step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor import rundir
from dpdoctor.analysis.base.stats import median_interval
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.spec import NATIVE, ModeSpec, Recording, RunSpec, WorkerTask
from dpdoctor.worker import native
from dpdoctor.worker.observer import Observer
from dpdoctor.worker.rank import Rank
from dpdoctor.worker.setup import Place

BATCH = 16
WIDTH = 128
WARMUP_STEPS = 20
CALIBRATION_DEPTHS = (2, 34)
CALIBRATION_STEPS = 100
STEPS_S = (0.020, 0.002)
KINDS = PLAIN, WATCHED, UNWATCHED = ("plain", "watched", "unwatched")
CLOCKS = ("wall", "CPU")
# Of a step, by kind and clock.
Seconds = dict[tuple[str, str], float]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset) -> Iterator[None]:
    """Train forever; yield after every step."""
    while True:
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            yield


def make_data() -> TensorDataset:
    """Return 400 batches of inputs and targets."""
    return TensorDataset(torch.randn(400 * BATCH, WIDTH), torch.randn(400 * BATCH, WIDTH))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that nearly leaves the model as it is."""
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def stack(depth: int) -> nn.Sequential:
    """Return `depth` linear layers, each with an activation.

    However many, activations and gradients keep their size: arithmetic on subnormal numbers takes many times as long.
    """
    linear = [nn.Linear(WIDTH, WIDTH) for _ in range(depth)]
    for layer in linear:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return nn.Sequential(*(part for layer in linear for part in (layer, nn.ReLU())))


def distributed(model: nn.Module) -> nn.Module:
    """Return the model as the script trains it: where it is one of several ranks, distributed."""
    return DistributedDataParallel(model) if dist.is_initialized() else model


def quiet_step_s(depth: int) -> float:
    """Return what an unwatched step of so many layers takes on a quiet machine: the CPU time that it takes on any."""
    model = distributed(stack(depth))
    training = steps(model, make_optimizer(model), make_data())
    edges = []
    for _ in range(WARMUP_STEPS + CALIBRATION_STEPS):
        next(training)
        edges.append(time.process_time())
    return statistics.median(end - begin for begin, end in pairwise(edges[WARMUP_STEPS:]))


def depth_for(step_s: float) -> int:
    """Return the number of layers whose step takes about `step_s` seconds here, on all ranks alike."""
    few, many = CALIBRATION_DEPTHS
    few_s, many_s = map(quiet_step_s, CALIBRATION_DEPTHS)
    # A step has a part that no layer makes longer, such as the loader's.
    depth = [max(1, round(few + (step_s - few_s) * (many - few) / (many_s - few_s)))]
    if dist.is_initialized():
        dist.broadcast_object_list(depth)
    return depth[0]


def make_task(directory: str, mode: ModeSpec) -> WorkerTask:
    """Return the task of a mode whose measured window never ends."""
    spec = RunSpec(
        target="benchmark",
        cwd=directory,
        modes=(mode,),
        requested_modes=(mode.name,),
        threads_per_device=1,
        recording=Recording(warmup=WARMUP_STEPS, steps=10_000_000, ablations=()),
    )
    return WorkerTask(spec=spec, mode=mode, directory=directory)


def make_rank(directory: str) -> Observer:
    """Return what watches this process: as mode native where it has a process group, else as mode single."""
    if dist.is_initialized():
        return native.observe(Path(directory), lambda *_: None)
    mode = ModeSpec(name="single", world_size=1, num_devices=1, distributed=False, batch_rule="per-device")
    heartbeat = Heartbeat(Path(directory), os.getpid(), time.monotonic_ns)
    place = Place(rank=0, local_rank=0, world_size=1)
    return Rank(make_task(directory, mode), place, Path(directory), heartbeat, None)


class Switch:
    """Takes the hooks out and puts them back: patched attributes, the wrapped call, the optimizers' hooks."""

    def __init__(self, rank: Observer) -> None:
        self._seeing = rank._hooks
        self._redirects = [(module, module._compiled_call_impl) for module in rank._wrapping.modules]
        self._attributes: list[tuple[Any, str, Any, Any]] = [
            (owner, name, vars(owner)[name], original)
            for (_, name), (owner, original) in rank._patches._originals.items()
        ]
        self._hooks = [
            (hooks, dict(hooks))
            for hooks in (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
        ]

    def set(self, kind: str) -> None:
        """Switch to steps of one of KINDS."""
        if self._seeing.are_out:
            self._seeing.put_back()
        for owner, name, patched, original in self._attributes:
            setattr(owner, name, original if kind == PLAIN else patched)
        for module, redirect in self._redirects:
            module._compiled_call_impl = None if kind == PLAIN else redirect
        for hooks, saved in self._hooks:
            hooks.clear()
            hooks.update({} if kind == PLAIN else saved)
        if kind == UNWATCHED:
            self._seeing.take_out(sys.maxsize)


def measure(step_s: float, turns: int, window_s: float, directory: str) -> None:
    """Print the cost of watching steps of about `step_s` seconds."""
    torch.set_num_threads(1)
    model = stack(depth_for(step_s))
    rank = make_rank(directory)
    script, data = distributed(model), make_data()
    optimizer = make_optimizer(script)
    # An iterator keeps the watched parts with which it began: plain windows have one of their own.
    training = {kind: steps(script, optimizer, data) for kind in KINDS}
    # Warm-up, the proof, the first uncounted step: from here on the hooks do what they do in a measured window.
    for _ in range(WARMUP_STEPS + 5):
        next(training[WATCHED])
    switch = Switch(rank)
    window_steps = max(4, round(window_s / step_s))
    found: list[Seconds] = []
    for turn in range(turns):
        seconds: Seconds = {}
        for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
            switch.set(kind)
            next(training[kind])
            if dist.is_initialized():
                dist.barrier()
            begin = time.perf_counter(), time.process_time()
            for _ in range(window_steps):
                next(training[kind])
            for clock, before, now in zip(CLOCKS, begin, (time.perf_counter(), time.process_time()), strict=True):
                seconds[kind, clock] = (now - before) / window_steps
            # As at a window's edge, outside of what is timed.
            rank._recorder.flush()
        found.append(seconds)
    switch.set(WATCHED)
    rank._patches.undo()
    if not dist.is_initialized() or dist.get_rank() == 0:
        tell(found, window_steps, rank._steplog.cost_ns)


def tell(found: list[Seconds], window_steps: int, estimate_ns: float | None) -> None:
    """Print what was found in all turns, and what dpdoctor itself says that watching a step costs."""
    for kind in (WATCHED, UNWATCHED):
        for clock in CLOCKS:
            step_s = statistics.median(turn[PLAIN, clock] for turn in found)
            figure = median_interval([turn[kind, clock] / turn[PLAIN, clock] for turn in found], "ratio")
            value, low, high = (100 * (each - 1) for each in (figure.value, figure.low, figure.high))
            is_told = estimate_ns is not None and kind == WATCHED
            own = f"; dpdoctor's own estimate {100 * estimate_ns * 1e-9 / step_s:.2f} %" if is_told else ""
            print(
                f"step of {1e3 * step_s:.2f} ms {clock} time, {kind}: {value:+.2f} % ({low:+.2f} to {high:+.2f}), "
                f"{1e4 * step_s * value:.0f} us, {len(found)} turns of {window_steps} steps{own}",
                flush=True,
            )


def start_ranks(options: list[str]) -> None:
    """Run this benchmark again as two ranks of each step size."""
    for step_s in STEPS_S:
        with tempfile.TemporaryDirectory() as directory:
            mode = ModeSpec(
                name=NATIVE,
                world_size=2,
                num_devices=2,
                distributed=True,
                batch_rule="per-device",
                launcher=("torchrun",),
            )
            rundir.write_json(Path(directory) / rundir.TASK, make_task(directory, mode))
            torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
            own = ("--rank-of", directory, "--step", str(step_s))
            subprocess.run([*torchrun, __file__, *options, *own], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--window", type=float, default=0.2, help="seconds per window")
    parser.add_argument("--native", action="store_true", help="two ranks of DistributedDataParallel")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--step", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.native:
        start_ranks(["--turns", str(args.turns), "--window", str(args.window)])
    elif args.rank_of:
        dist.init_process_group("gloo")
        measure(args.step, args.turns, args.window, args.rank_of)
        dist.destroy_process_group()
    else:
        for step_s in STEPS_S:
            with tempfile.TemporaryDirectory() as directory:
                measure(step_s, args.turns, args.window, directory)


if __name__ == "__main__":
    main()
