"""Train LeNet-5 on drawn digits: many small batches, each image augmented on the fly.

The digits look like MNIST and behave like torchvision.datasets.MNIST, but are drawn here instead of downloaded.
"""

import argparse
import itertools
import time

import faults
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

FAULTS = {
    "slow_transform": (1, "a transform computes for SIZE ms on each image"),
    "slow_disk": (1, "reading an image waits SIZE ms for the disk"),
    "stall_items": (100, "one image in 512 waits SIZE ms for the disk"),
    "new_iterator": (1, "every SIZE batches the loader is iterated anew"),
    "evaluate_often": (50, "accuracy is measured every SIZE steps, not only after an epoch"),
}

TO_INPUT = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]

# One digit per column, 5 x 7 dots each.
FONT = """
 ###    #    ###  #####    #  #####   ##  #####  ###   ###
#   #  ##   #   #    #    ##  #      #        # #   # #   #
#  ##   #       #   #    # #  ####  #        #  #   # #   #
# # #   #      #     #  #  #      # ####    #    ###   ####
##  #   #     #       # #####     # #   #  #    #   #     #
#   #   #    #    #   #    #  #   # #   #  #    #   #    #
 ###   ###  #####  ###     #   ###   ###   #     ###   ##
"""


def glyphs():
    """Return the ten digits as arrays of 21 x 15 pixels of 0 or 1."""
    rows = [list(row.ljust(60)) for row in FONT.strip("\n").splitlines()]
    dots = np.array(rows) == "#"
    return [np.kron(dots[:, 6 * digit : 6 * digit + 5], np.ones((3, 3))) for digit in range(10)]


class Digits(Dataset):
    """`size` images of 28 x 28 grey pixels, each a digit at a place, in a shade and with noise of its own."""

    def __init__(self, size, transform=None, seed=0):
        rng = np.random.default_rng(seed)
        shapes = glyphs()
        self.transform = transform
        self.targets = rng.integers(10, size=size)
        self.data = rng.integers(40, size=(size, 28, 28), dtype=np.uint8)
        for image, digit in zip(self.data, self.targets, strict=True):
            top, left = rng.integers(2, 6), rng.integers(3, 11)
            image[top : top + 21, left : left + 15] += (shapes[digit] * rng.integers(120, 216)).astype(np.uint8)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = Image.fromarray(self.data[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, int(self.targets[index])


class DigitsOnDisk(Digits):
    """Digits on a slow disk: every `every`-th image is waited for, `wait` seconds long."""

    def __init__(self, *args, wait, every=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.wait = wait
        self.every = every

    def __getitem__(self, index):
        if index % self.every == 0:
            time.sleep(self.wait)
        return super().__getitem__(index)


class Smooth:
    """A transform that smooths an image over and over: `seconds` of computing."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, image):
        end = time.thread_time() + self.seconds
        smooth = image
        while time.thread_time() < end:
            smooth = smooth.filter(ImageFilter.SMOOTH)
        return image


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def restarted(loader, every):
    """Yield as many batches as the loader has, from a new iterator over it every `every` batches."""
    for begin in range(0, len(loader), every):
        yield from itertools.islice(loader, min(every, len(loader) - begin))


def train(model, loader, criterion, optimizer, device, *, after_step=None):
    """Train for one epoch and return the mean loss of its batches."""
    model.train()
    total = 0.0
    for step, (images, labels) in enumerate(loader, 1):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if after_step is not None:
            after_step(step)
    return total / step


@torch.no_grad()
def accuracy(model, loader, device):
    """Return the share of images that the model names rightly."""
    model.eval()
    correct = 0
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(dim=1)
        correct += (predicted == labels.to(device)).sum().item()
    return correct / len(loader.dataset)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--train-size", type=int, default=6400, help="number of training images")
    parser.add_argument("--num-workers", type=int, default=0, help="loader processes")
    parser.add_argument("--prefetch-factor", type=int, help="batches that each loader process fetches ahead")
    parser.add_argument("--no-affine", action="store_true", help="train without random rotation, shift and scale")
    faults.add_option(parser, FAULTS)
    return parser.parse_args()


def make_train_set(args):
    """Return the training images with their transforms."""
    seconds = args.fault.size / 1000
    chain = [*TO_INPUT]
    if not args.no_affine:
        chain.insert(0, transforms.RandomAffine(15, translate=(0.1, 0.1), scale=(0.9, 1.1)))
    if args.fault.name == "slow_transform":
        chain.insert(0, Smooth(seconds))
    transform = transforms.Compose(chain)
    if args.fault.name == "slow_disk":
        return DigitsOnDisk(args.train_size, transform, wait=seconds)
    if args.fault.name == "stall_items":
        return DigitsOnDisk(args.train_size, transform, wait=seconds, every=512)
    return Digits(args.train_size, transform)


def main():
    args = parse_args()
    fault = args.fault
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = make_train_set(args)
    test_set = Digits(1000, transforms.Compose(TO_INPUT), seed=1)
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        prefetch_factor=args.prefetch_factor,
    )
    test_loader = DataLoader(test_set, batch_size=256)

    model = LeNet().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def evaluate_often(step):
        if step % fault.size == 0:
            print(f"Step: {step}, Accuracy: {accuracy(model, test_loader, device):.2%}")
            model.train()

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        batches = restarted(train_loader, int(fault.size)) if fault.name == "new_iterator" else train_loader
        loss = train(
            model,
            batches,
            criterion,
            optimizer,
            device,
            after_step=evaluate_often if fault.name == "evaluate_often" else None,
        )
        duration = time.perf_counter() - start
        right = accuracy(model, test_loader, device)
        print(f"Epoch [{epoch}/{args.epochs}], Loss: {loss:.4f}, Dur: {duration:.2f} s, Accuracy: {right:.2%}")


if __name__ == "__main__":
    main()
