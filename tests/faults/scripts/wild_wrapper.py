"""A framework's wrapper that passes on what is set, and its checkpoints, which tell tied tensors by their memory."""

import importlib.util

import torch
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.inner = module
        self.mixes = torch.float32
        self.is_complete = True

    def forward(self, x):
        return self.inner(x.to(self.mixes))

    def __setattr__(self, name, value):
        if "is_complete" in vars(self) and hasattr(self.inner, name):
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)


def save(model):
    state = model.state_dict()
    assert len({value.untyped_storage().data_ptr() for value in state.values()}) == len(state)
    torch.save(state, "state.pt")
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import load_file, save_model

        save_model(model, "state.safetensors")
        print(sum(value.numel() for value in load_file("state.safetensors").values()), flush=True)


model = Wrapper(nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
step = 0
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            save(model)
