"""Profiles itself as tutorials do: `plain` over the whole loop, `scheduled` in cycles, `traces` with files, `autograd`.

What it finds is printed where the loop ends, after `steps`; 0: never.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, TensorDataset

how, steps = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(after_step=lambda: None):
    done = 0
    while True:
        for x, y in DataLoader(TensorDataset(torch.randn(480, 8), torch.randn(480, 1)), batch_size=6):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            after_step()
            done += 1
            if done == steps:
                return


def show(prof):
    print(
        "cycle", prof.step_num, len(prof.key_averages().table(sort_by="self_cpu_time_total").splitlines()), flush=True
    )


def trace(prof):
    tensorboard_trace_handler("log")(prof)
    print("traces", len(list(Path("log").glob("*.pt.trace.json"))), flush=True)


if how == "autograd":
    while True:
        with torch.autograd.profiler.profile() as prof:
            optimizer.zero_grad()
            model(torch.randn(6, 8)).mean().backward()
            optimizer.step()
        prof.key_averages().table()
own = {
    "plain": {"record_shapes": True},
    "scheduled": {"schedule": schedule(wait=1, warmup=1, active=3, repeat=0), "on_trace_ready": show},
    "traces": {"schedule": schedule(wait=1, warmup=1, active=3, repeat=0), "on_trace_ready": trace},
}[how]
with profile(activities=[ProfilerActivity.CPU], **own) as prof:
    train(prof.step)
prof.export_chrome_trace("trace.json")
print("events", len(prof.events()))
