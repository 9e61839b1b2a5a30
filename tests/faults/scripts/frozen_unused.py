"""Fine-tuning: a frozen backbone in eval mode, a head that trains, and a layer that never gets a gradient."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 3)
        self.auxiliary = nn.Linear(16, 7)

    def forward(self, x):
        return self.head(self.backbone(x))


torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randint(0, 3, (160,)))
model = Net()
model.backbone.requires_grad_(False)
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01)
while True:
    model.train()
    model.backbone.eval()
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        print(len(y), loss.item(), flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
