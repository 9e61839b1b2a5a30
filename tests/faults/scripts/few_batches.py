"""Each epoch is one batch of images that are augmented, or `stream`s them: ranks see the same ones, made other ones."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

LABELS = torch.randint(10, (512,), generator=torch.Generator().manual_seed(3)).tolist()


def augmented(index):
    return torch.full((4,), float(index)) + torch.randn(4), LABELS[index]


class Images(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return augmented(index)


class Stream(IterableDataset):
    def __iter__(self):
        return map(augmented, range(len(LABELS)))


loader = DataLoader(Stream(), batch_size=16) if sys.argv[1:] == ["stream"] else DataLoader(Images(), 16, shuffle=True)
model = nn.Linear(4, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
while True:
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
