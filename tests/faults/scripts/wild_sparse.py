"""Embeddings with sparse gradients, of which a batch has a part: `--kind embedding|bag`.

Their optimizer takes no dense ones; `--forward` calls model.forward.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="embedding")
parser.add_argument("--forward", action="store_true")
args = parser.parse_args()
kind = args.kind


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = (nn.Embedding if kind == "embedding" else nn.EmbeddingBag)(500, 16, sparse=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        found = self.table(x)
        return self.head(found.mean(1) if kind == "embedding" else found)


torch.manual_seed(0)
model = Words()
optimizers = torch.optim.SparseAdam(model.table.parameters()), torch.optim.SGD(model.head.parameters(), lr=0.01)
data = TensorDataset(torch.randint(500, (480, 5)), torch.randn(480, 1))
while True:
    for x, y in DataLoader(data, batch_size=6):
        model.zero_grad()
        nn.functional.mse_loss(model.forward(x) if args.forward else model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
