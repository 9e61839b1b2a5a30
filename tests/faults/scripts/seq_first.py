"""An LSTM with time first: dim 0 of what enters the model is 12 time steps, and the batch is 5."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x, state=None):
        out, state = self.lstm(x, state)
        return self.head(out[-1]), state


def time_first(items):
    x, y = zip(*items)
    return torch.stack(x, dim=1), torch.stack(y)


torch.manual_seed(5)
data = TensorDataset(torch.randn(80, 12, 8), torch.randint(0, 3, (80,)))
model = Tagger()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
while True:
    for x, y in DataLoader(data, batch_size=5, shuffle=True, collate_fn=time_first):
        optimizer.zero_grad()
        logits, _ = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
