"""A step of 4 ms, and 6 ms more of it where dpdoctor watches; writes a file now and then, and reads it."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

watched = "dpdoctor.worker.rank" in sys.modules
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.rand(8000, 8), batch_size=4)
note = Path("note.txt")
for number, batch in enumerate(loader):
    optimizer.zero_grad()
    model(batch).sum().backward()
    time.sleep(0.010 if watched else 0.004)
    if number % 50 == 0:
        note.write_text(f"{number} after {note.read_text() if note.exists() else 'nothing'}")
    optimizer.step()
