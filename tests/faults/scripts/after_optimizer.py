"""What scripts do to a model after its optimizer was built."""

import copy
import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
saved = copy.deepcopy(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
what = sys.argv[1]
if what == "load":
    model.load_state_dict(saved)
elif what == "freeze":
    model[0].requires_grad_(False)
elif what == "to":
    model = model.to("cpu", torch.float64)
elif what == "deepcopy":
    average = copy.deepcopy(model)
dtype = next(model.parameters()).dtype
data = torch.utils.data.TensorDataset(torch.randn(640, 8, dtype=dtype), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if what == "deepcopy":
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters()):
                    mean.lerp_(new, 0.1)
            copy.deepcopy(model)
