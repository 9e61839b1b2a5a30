"""Train a LightningModule on two devices, which Lightning starts by itself (needs lightning).

python samples/lightning_module.py
"""

import argparse

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):
    """Three linear layers."""

    def __init__(self, width):
        """Build the layers."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        inputs, labels = batch
        return functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self):
        """Return what updates the parameters."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main():
    """Train under Lightning."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--devices", type=int, default=2)
    options = parser.parse_args()
    data = TensorDataset(torch.randn(options.samples, 256), torch.randint(10, (options.samples,)))
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
    trainer = Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=options.devices,
        strategy="ddp",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(options.width), loader)


if __name__ == "__main__":
    main()
