"""Nested dicts from the dataset, a collate function that pads, and `model(**batch)` with the loss in its output."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, 50, (4 + index % 5,), generator=generator)
        return {"text": {"ids": ids}, "label": index % 3}


def collate(items):
    ids = nn.utils.rnn.pad_sequence([item["text"]["ids"] for item in items], batch_first=True)
    return {"text": {"ids": ids, "mask": ids > 0}, "labels": torch.tensor([item["label"] for item in items])}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.head = nn.Linear(16, 3)

    def forward(self, text, labels=None):
        mask = text["mask"].unsqueeze(-1)
        logits = self.head((self.embed(text["ids"]) * mask).sum(1) / mask.sum(1))
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}


torch.manual_seed(5)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
while True:
    for batch in DataLoader(Sentences(), batch_size=5, shuffle=True, collate_fn=collate):
        output = model(**batch)
        print(len(batch["labels"]), output["loss"].item(), flush=True)
        output["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
