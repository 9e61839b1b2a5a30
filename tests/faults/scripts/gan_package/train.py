"""Two models and two optimizers; the discriminator runs three times in a step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from .lion import Lion
from .models import Discriminator, Generator


def train(loader):
    generator, discriminator = Generator(), Discriminator()
    optimizer_g = Lion(generator.parameters())
    optimizer_d = Lion(discriminator.parameters())
    criterion = nn.BCEWithLogitsLoss()
    while True:
        for (real,) in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(torch.randn(len(real), 4))
            optimizer_d.zero_grad()
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
            loss_d.backward()
            print(len(real), loss_d.item(), flush=True)
            optimizer_d.step()
            optimizer_g.zero_grad()
            criterion(discriminator(fake), ones).backward()
            optimizer_g.step()


if __name__ == "__main__":
    torch.manual_seed(5)
    train(DataLoader(TensorDataset(torch.randn(160, 2)), batch_size=8, shuffle=True))
