"""Tokens as (time, batch), 9 by 4, without a loader, cut from a text that is laid out in columns; an LSTM reads them."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 16)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens, state):
        out, state = self.lstm(self.embed(tokens), state)
        return self.head(out).flatten(0, 1), state


torch.manual_seed(5)
text = torch.randint(0, 32, (901, 4))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = None
while True:
    for begin in range(0, 900, 9):
        tokens, targets = (text[begin + shift : begin + shift + 9] for shift in (0, 1))
        optimizer.zero_grad()
        logits, state = model(tokens, state)
        state = [part.detach() for part in state]
        loss = nn.functional.cross_entropy(logits, targets.flatten())
        print(tokens.shape[1], loss.item(), flush=True)
        loss.backward()
        optimizer.step()
