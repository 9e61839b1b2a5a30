"""Train a DCGAN on drawn shapes: a generator and a discriminator, each with an optimizer of its own."""

import argparse
import gc
import time

import faults
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

FAULTS = {
    "short_epochs": (10, "an epoch has SIZE batches, and the loader's processes are started anew for each"),
    "gc_churn": (1000, "every step keeps SIZE values in objects that refer to each other, and collects them by hand"),
}


class Discs(Dataset):
    """`size` images of 3 x 32 x 32 values from -1 to 1: one disc, its place, radius and colours drawn at random."""

    def __init__(self, size, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.centres = torch.rand(size, 2, generator=generator) - 0.5
        self.radii = 0.2 + 0.3 * torch.rand(size, generator=generator)
        self.colours = 2 * torch.rand(size, 2, 3, 1, 1, generator=generator) - 1
        line = torch.linspace(-1, 1, 32)
        self.grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1)

    def __len__(self):
        return len(self.radii)

    def __getitem__(self, index):
        inside = (self.grid - self.centres[index]).norm(dim=-1) < self.radii[index]
        front, back = self.colours[index]
        return torch.where(inside, front, back)


class Generator(nn.Module):
    """Noise of `latent` values to an image of 3 x 32 x 32."""

    def __init__(self, latent, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(latent, 4 * width, 4, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.layers(noise[:, :, None, None])


class Discriminator(nn.Module):
    """An image to the logit of its being real."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 4),
        )

    def forward(self, images):
        return self.layers(images).flatten()


def init_weights(module):
    """Draw the weights of convolutions as the DCGAN paper does."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)


class Moment:
    """One value of a step's history, which knows its neighbours."""

    def __init__(self, value, before):
        self.value = value
        self.before = before
        self.after = None
        if before is not None:
            before.after = self


def keep_history(values):
    """Chain up a step's values, as a tracker of statistics does, and let go of them."""
    moment = None
    for value in values:
        moment = Moment(value, moment)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--train-size", type=int, default=6400, help="number of images")
    parser.add_argument("--num-workers", type=int, default=0, help="loader processes")
    parser.add_argument("--latent", type=int, default=64, help="values of noise per image")
    parser.add_argument("--width", type=int, default=16, help="channels of the widest feature maps; 64 on a GPU")
    faults.add_option(parser, FAULTS)
    return parser.parse_args()


def main():
    args = parse_args()
    fault = args.fault
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = Discs(args.train_size)
    drawn = int(fault.size) * args.batch_size if fault.name == "short_epochs" else len(images)
    loader = DataLoader(
        images,
        batch_size=args.batch_size,
        sampler=RandomSampler(images, num_samples=drawn),
        drop_last=True,
        num_workers=args.num_workers,
    )

    generator = Generator(args.latent, args.width).apply(init_weights).to(device)
    discriminator = Discriminator(args.width).apply(init_weights).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        for real in loader:
            real = real.to(device)
            ones, zeros = torch.ones(len(real), device=device), torch.zeros(len(real), device=device)
            fake = generator(torch.randn(len(real), args.latent, device=device))

            optimizer_d.zero_grad()
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
            loss_d.backward()
            optimizer_d.step()

            optimizer_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            optimizer_g.step()

            if fault.name == "gc_churn":
                keep_history(range(int(fault.size)))
                gc.collect()
        duration = time.perf_counter() - start
        print(f"Epoch [{epoch}/{args.epochs}], D: {loss_d.item():.4f}, G: {loss_g.item():.4f}, Dur: {duration:.2f} s")


if __name__ == "__main__":
    main()
