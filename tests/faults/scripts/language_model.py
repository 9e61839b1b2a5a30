"""nanoGPT's way: batches sliced from one tensor, tied weights, bf16, accumulation; for as many steps as are given."""

import itertools
import sys

import torch
from torch import nn

BATCH, LENGTH, ACCUMULATE = 4, 12, 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.attention = nn.Linear(16, 48)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = x + nn.functional.scaled_dot_product_attention(*self.attention(x).chunk(3, -1), is_causal=True)
        logits = self.head(x + self.mlp(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(5)
text = torch.randint(0, 32, (1000,))


def get_batch():
    begins = torch.randint(len(text) - LENGTH, (BATCH,))
    return tuple(torch.stack([text[i + shift : i + shift + LENGTH] for i in begins]) for shift in (0, 1))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for _ in range(int(sys.argv[1])) if sys.argv[1:] else itertools.count():
    for _ in range(ACCUMULATE):
        tokens, targets = get_batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, loss = model(tokens, targets)
        (loss / ACCUMULATE).backward()
    print(BATCH * ACCUMULATE, loss.item(), flush=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
