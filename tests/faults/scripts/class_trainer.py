"""minGPT's way, from a click command: a Trainer class, and a sampler with replacement that is 10,000,000,000 long."""

import click
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Trainer:
    def __init__(self, model, batch_size, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 100)
        data = TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
        sampler = RandomSampler(data, replacement=True, num_samples=int(1e10))
        self.loader = DataLoader(data, batch_size, sampler=sampler, num_workers=1, persistent_workers=True)

    def train_step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        print(len(y), loss.item(), flush=True)
        self.optimizer.step()
        self.scheduler.step()

    def run(self):
        for batch in self.loader:
            self.train_step(batch)


@click.command()
@click.option("--batch-size", default=4)
@click.option("--lr", default=1e-3)
def main(batch_size, lr):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    Trainer(model, batch_size, lr).run()


if __name__ == "__main__":
    main()
