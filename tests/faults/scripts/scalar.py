"""A parameter without dimension, such as CLIP's logit_scale."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(8, 4)
        self.logit_scale = nn.Parameter(torch.ones([]))

    def forward(self, x):
        return super().forward(x) * self.logit_scale.exp()


torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randint(0, 4, (160,)))
model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
