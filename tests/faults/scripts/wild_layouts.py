"""The model is called with a tensor that is not laid out densely: `coo`, `csr`, `csc`, `nested` or `jagged`; 7 rows."""

import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
LAYOUTS = {"coo": torch.sparse_coo, "csr": torch.sparse_csr, "csc": torch.sparse_csc}
layout = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 1)

    def forward(self, x):
        return self.head(x.to_padded_tensor(0.0) if x.is_nested else x.to_dense())


def batch():
    if layout in LAYOUTS:
        return torch.rand(7, 5).to_sparse(layout=LAYOUTS[layout])
    rows = [torch.rand(length, 5) for length in (1, 2, 3, 4, 5, 6, 7)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged if layout == "jagged" else torch.strided)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    net(batch()).square().mean().backward()
    optimizer.step()
