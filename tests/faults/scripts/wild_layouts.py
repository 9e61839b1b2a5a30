"""The model is called with a tensor that is not laid out densely: `coo`, `csr`, `csc`, `nested` or `jagged`; 7 rows.

A second argument has a loader give them.
"""

import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
LAYOUTS = {"coo": torch.sparse_coo, "csr": torch.sparse_csr, "csc": torch.sparse_csc}
layout = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 1)

    def forward(self, x):
        return self.head(x.to_padded_tensor(0.0) if x.is_nested else x.to_dense())


def batch(_=None):
    if layout in LAYOUTS:
        return torch.rand(7, 5).to_sparse(layout=LAYOUTS[layout])
    rows = [torch.rand(length, 5) for length in (1, 2, 3, 4, 5, 6, 7)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged if layout == "jagged" else torch.strided)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(range(7000), batch_size=7, collate_fn=batch)
for x in loader if sys.argv[2:] else (batch() for _ in range(200)):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
