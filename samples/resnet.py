"""Train a ResNet from torchvision on random images and print its throughput every few steps."""

import argparse
import time

import faults
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 100
FAULTS = {
    "big_buffers": (64, "the model keeps SIZE MB of past features in a buffer"),
    "unused_head": (512, "the model has a head, SIZE wide, that its forward pass does not use"),
    "checkpoint_often": (20, "model and optimizer are saved every SIZE steps"),
    "too_many_threads": (16, "torch is told to compute with SIZE threads"),
    "float64_images": (1, "images arrive in double precision, and become floats on the device"),
    "item_each_step": (1, "the loss is printed every SIZE steps"),
}


def random_images(num_images, image_size, dtype=torch.float32):
    """Return a dataset of random RGB images with random labels."""
    images = torch.randn(num_images, 3, image_size, image_size, dtype=dtype)
    labels = torch.randint(0, NUM_CLASSES, (num_images,))
    return TensorDataset(images, labels)


class WithMemory(nn.Module):
    """A classifier that remembers the features of past images, as contrastive losses need them."""

    def __init__(self, model, num_bytes):
        super().__init__()
        self.model = model
        self.register_buffer("memory", torch.zeros(num_bytes // (4 * NUM_CLASSES), NUM_CLASSES))

    def forward(self, images):
        logits = self.model(images)
        self.memory[: len(logits)] = logits.detach()
        return logits


def make_model(args):
    """Return the classifier that the arguments name."""
    model = torchvision.models.get_model(args.arch, num_classes=NUM_CLASSES)
    if args.fault.name == "big_buffers":
        return WithMemory(model, int(args.fault.size * 1e6))
    if args.fault.name == "unused_head":
        width = int(args.fault.size)
        model.projection = nn.Sequential(nn.Linear(NUM_CLASSES, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES))
    return model


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=["resnet18", "resnet50"], default="resnet50")
    parser.add_argument("--image-size", type=int, default=64, help="height and width of an image; 224 on a GPU")
    parser.add_argument("--train-size", type=int, default=6400, help="number of images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=4, help="loader processes")
    parser.add_argument("--log-steps", type=int, default=20, help="steps between two lines of output")
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="file that checkpoint_often writes")
    faults.add_option(parser, FAULTS)
    return parser.parse_args()


def main():
    args = parse_args()
    fault = args.fault
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    dtype = torch.float64 if fault.name == "float64_images" else torch.float32
    dataset = random_images(args.train_size, args.image_size, dtype)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers)

    model = make_model(args).to(device)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    if fault.name == "too_many_threads":
        torch.set_num_threads(int(fault.size))

    model.train()
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for step, (images, labels) in enumerate(loader, 1):
            images, labels = images.to(device).float(), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()

            if fault.name == "checkpoint_often" and step % fault.size == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)
            if fault.name == "item_each_step" and step % fault.size == 0:
                print(f"Step: {step}, Loss: {loss.item():.4f}")
            if step % args.log_steps == 0:
                value = loss.item()  # waits for the device, so that the clock is read after the work
                rate = args.batch_size * args.log_steps / (time.perf_counter() - start)
                print(f"Epoch: {epoch}, Step: {step}, Loss: {value:.4f}, Throughput: {rate:.1f} samples/s")
                start = time.perf_counter()


if __name__ == "__main__":
    main()
