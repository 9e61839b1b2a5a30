"""A hydra entry: a function that gets its configuration, which hydra also writes beside the script's outputs."""

from dataclasses import dataclass

import hydra
import torch
from hydra.core.config_store import ConfigStore
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    batch_size: int = 8
    lr: float = 0.01


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_path=None, config_name="config")
def main(config):
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    while True:
        for x, y in DataLoader(data, batch_size=config.batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            print(len(y), loss.item(), flush=True)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
