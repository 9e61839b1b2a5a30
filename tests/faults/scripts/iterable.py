"""An IterableDataset that shares its records out over the loader's workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Records(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 160, stride):
            generator = torch.Generator().manual_seed(index)
            yield torch.randn(8, generator=generator), index % 2


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Records(), batch_size=8, num_workers=2, persistent_workers=True)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
