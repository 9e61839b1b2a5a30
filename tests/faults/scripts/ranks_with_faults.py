"""One rank of a small DDP run on gloo that slows itself down as asked, fault after fault.

Arguments: rank, number of ranks, folder of the run, faults. Leaves a trace per fault and rank, and what each step
really lost to the fault (ns).
"""

import contextlib
import gc
import json
import math
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

rank, num_ranks, folder, faults = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
CULPRIT = 1
STEPS = 20
LOST_S = 0.030
# What every rank waits for in every step, on average: a run that mostly sleeps is little disturbed by its machine.
USUAL_S = 0.030
LATE_S = 1.0
COLLECTED_STEP = 9
OBJECTS = 40_000

usual = random.Random(0)  # alike on all ranks


def timed(action):
    begin = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - begin


def cyclic_heap():
    """Return many objects that refer to each other: what a full collection has to walk through."""
    heap = []
    for _ in range(OBJECTS):
        pair = [None]
        pair[0] = [pair]
        heap.append(pair)
    return heap


def lose_time(fault, step):
    """Do what the fault asks of this rank in this step."""
    if fault == "persistent" and rank == CULPRIT:
        time.sleep(LOST_S)
    if fault == "rotating" and step % num_ranks == rank:
        time.sleep(LOST_S)
    if fault == "periodic" and rank == CULPRIT and step % 4 == 1:
        time.sleep(LOST_S)
    if fault == "gc" and rank == CULPRIT and step == COLLECTED_STEP:
        gc.collect()


def train(fault="none", step=-1):
    """Run one step, which ends with a figure that all ranks add up; return the ns that were lost in it."""
    optimizer.zero_grad()
    loss = model(torch.randn(16, 128)).square().mean()
    lost = timed(lambda: lose_time(fault, step))
    loss.backward()
    optimizer.step()
    time.sleep(USUAL_S * usual.uniform(0.5, 1.5))
    dist.all_reduce(loss.detach())
    return lost


def record(fault):
    heap = cyclic_heap() if fault == "gc" and rank == CULPRIT else []
    steps = STEPS
    dist.barrier()
    if fault == "late profiler":
        # All ranks train for a second that only the others' profilers see.
        missed = math.ceil(LATE_S / USUAL_S)
        if rank == CULPRIT:
            for _ in range(missed):
                train()
        else:
            steps += missed
    if fault == "slow profiler" and rank == CULPRIT:
        time.sleep(LATE_S)
    lost = []
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=0, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / f"{fault}-rank{rank}.json")),
    ) as profiler:
        for step in range(steps):
            lost.append(train(fault, step))
            profiler.step()
    (folder / f"{fault}-rank{rank}.lost").write_text(json.dumps(lost))


torch.set_num_threads(1)
gc.disable()
with contextlib.suppress(PermissionError):
    # Before the threads of gloo are made, which inherit it. Otherwise a busy machine plants faults of its own.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), num_ranks), rank=rank, world_size=num_ranks)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    train()
for fault in faults:
    record(fault)
dist.barrier()
dist.destroy_process_group()
