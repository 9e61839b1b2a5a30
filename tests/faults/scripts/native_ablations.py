"""Exchanges gradients in one of many ways, as its first argument says: ways in which a switch may go wrong."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WAY = sys.argv[1]
EPOCHS = int(sys.argv[2])
IN_DDP = {"attribute", "no_sync", "every_micro_batch", "compiled", "own_forward"}
MICRO_BATCHES = 2 if WAY in {"attribute", "no_sync", "every_micro_batch"} else 1

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
data = TensorDataset(torch.randn(1280, 64), torch.randn(1280, 1))
loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data))
group = dist.new_group([0, 1])


class OwnForward(DistributedDataParallel):
    """Does what the wrapper's forward does, in one of its own."""

    def forward(self, *inputs):
        inputs, kwargs = self._pre_forward(*inputs)
        return self._post_forward(self._run_ddp_forward(*inputs, **kwargs))


def wrapped():
    if WAY in IN_DDP:
        model = OwnForward(layers) if WAY == "own_forward" else DistributedDataParallel(layers)
        if WAY == "every_micro_batch":
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        return torch.compile(model, backend="eager") if WAY == "compiled" else model
    if WAY == "fsdp1":
        return FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
    if WAY == "clipped":
        for layer in (layers[0], layers[2], layers):
            fully_shard(layer)
    return layers


def average(tensor):
    """Average a tensor over the ranks: the one line at which this script exchanges all of its gradients."""
    dist.all_reduce(tensor, group=group)
    tensor /= world_size


model = wrapped()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
moments = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}
number = 0
for _ in range(EPOCHS):
    for inputs, targets in loader:
        number += 1
        for micro in range(MICRO_BATCHES):
            is_last = micro == MICRO_BATCHES - 1
            if WAY == "attribute":
                model.require_backward_grad_sync = is_last
            apart = model.no_sync() if WAY == "no_sync" and not is_last else contextlib.nullcontext()
            with apart:
                loss = (model(inputs[micro::MICRO_BATCHES]) - targets[micro::MICRO_BATCHES]).square().mean()
                loss.backward()
        if WAY in {"hand", "momentum"}:
            for parameter in model.parameters():
                average(parameter.grad)
        if WAY == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if WAY == "hand":  # whoever leaves this out, too, has ranks wait for each other for ever
            goes_on = torch.tensor([float(rank == 0)])
            dist.all_reduce(goes_on)
            assert goes_on == 1, "this rank heard nothing of the other"
        if WAY == "momentum":
            with torch.no_grad():
                for parameter, moment in moments.items():
                    moment.mul_(0.9).add_(parameter.grad)
                    parameter.grad.copy_(moment)
        optimizer.step()
        optimizer.zero_grad()
        if WAY == "local_sgd" and number % 4 == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    average(parameter)
print(f"rank {rank} ends by itself", flush=True)
dist.destroy_process_group()
