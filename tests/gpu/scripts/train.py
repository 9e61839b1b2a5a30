"""Trains a small network and prints its losses. Where the loss is taken, what forward does and AMP are options."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--amp", choices=["none", "bf16", "fp16"], default="none")
parser.add_argument("--loss", choices=["outside", "inside", "averaged"], default="outside")
parser.add_argument("--ask-for-parameters", action="store_true")
parser.add_argument("--sleep-cycles", type=int, default=0)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward(self, x, y=None):
        if args.ask_for_parameters:
            x = x.to(next(self.parameters()).device)
        if args.sleep_cycles:
            torch.cuda._sleep(args.sleep_cycles)
        out = self.layers(x)
        return out if y is None else nn.functional.cross_entropy(out, y)


torch.manual_seed(5)
device = torch.device(args.device)
data = TensorDataset(torch.randn(1024, 32), torch.randint(0, 4, (1024,)))
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
dtype = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.amp]
scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
while True:
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(x), y) if args.loss == "outside" else model(x, y)
        loss = loss.mean() if args.loss == "averaged" else loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(len(y), loss.item() if args.sleep_cycles == 0 else "", flush=True)
