"""Steps that take long, or between which much is done: `step`, `evaluation` or `pause`."""

import sys
import time

import torch
from torch import nn

kind = sys.argv[1]
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
done = 0
while True:
    for x, y in loader:
        optimizer.zero_grad()
        time.sleep(0.5 if kind == "step" else 0.0)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        done += 1
        time.sleep(0.75 if kind == "pause" else 0.0)
        if kind == "evaluation" and done % 3 == 0:
            with torch.no_grad():
                for x, y in loader:
                    model(x)
                    time.sleep(1.15 / len(loader))
