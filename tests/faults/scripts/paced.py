"""Steps of a pace that is written here: a checkout with another number is a slower one."""

import time

import torch
from torch import nn

PACE_S = 0.004
BATCH = 4

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=BATCH):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        time.sleep(PACE_S)
        loss.backward()
        optimizer.step()
