"""Train a ResNet from torchvision on random images and print its throughput every few steps."""

import argparse
import time

import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 100


def random_images(num_images, image_size):
    """Return a dataset of random RGB images with random labels."""
    images = torch.randn(num_images, 3, image_size, image_size)
    labels = torch.randint(0, NUM_CLASSES, (num_images,))
    return TensorDataset(images, labels)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=["resnet18", "resnet50"], default="resnet50")
    parser.add_argument("--image-size", type=int, default=64, help="height and width of an image; 224 on a GPU")
    parser.add_argument("--train-size", type=int, default=6400, help="number of images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=4, help="loader processes")
    parser.add_argument("--log-steps", type=int, default=20, help="steps between two lines of output")
    return parser.parse_args()


def main():
    args = parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    dataset = random_images(args.train_size, args.image_size)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers)

    model = torchvision.models.get_model(args.arch, num_classes=NUM_CLASSES).to(device)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    model.train()
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for step, (images, labels) in enumerate(loader, 1):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()

            if step % args.log_steps == 0:
                value = loss.item()  # waits for the device, so that the clock is read after the work
                rate = args.batch_size * args.log_steps / (time.perf_counter() - start)
                print(f"Epoch: {epoch}, Step: {step}, Loss: {value:.4f}, Throughput: {rate:.1f} samples/s")
                start = time.perf_counter()


if __name__ == "__main__":
    main()
