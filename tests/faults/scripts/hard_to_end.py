"""`swallow`: a bare except around the step. `finally`: takes 20 seconds to leave."""

import sys
import time

import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(4, 8), torch.randint(0, 2, (4,))
try:
    while True:
        try:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        except:
            if sys.argv[1] == "finally":
                raise
            continue
finally:
    if sys.argv[1] == "finally":
        time.sleep(20)
