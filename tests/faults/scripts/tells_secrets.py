"""Writes what it was told in confidence wherever it can: prints it, names files and spans by it; `raise`: raises it."""

import base64
import os
import re
import sys

import torch
from torch import nn

secrets = re.findall(r"Zq\w+", " ".join([*sys.argv, os.environ["SERVICE_TOKEN"]]))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for secret in secrets:
    print(f"logged in with {secret}", flush=True)
    print("and", repr(secret), file=sys.stderr, flush=True)
    print("as", base64.b64encode(f"me:{secret}".encode()).decode(), flush=True)
    torch.save(model.state_dict(), f"model-{secret}.pt")
if sys.argv[1] == "raise":
    raise RuntimeError(f"401 for {' and '.join(secrets)}")
while True:
    with torch.profiler.record_function(secrets[0]):
        loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
