"""Another module holds the model and is never called: wrapping it would synchronise nothing."""

import torch
from torch import nn

model = nn.Linear(8, 2)
predictor = nn.Sequential(model, nn.Softmax(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
