"""Train a small decoder-only language model on made-up text, as larger ones are trained.

Tied embedding and head, mixed precision, gradient accumulation, clipping, a cosine schedule; compiled if asked.
"""

import argparse
import os
import socket
import time

import faults
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

FAULTS = {
    "slow_rank": (
        20,
        "of the processes of a run, the one that uploads the metrics waits SIZE ms for that in each step",
    ),
    "slow_metrics": (20, "every process waits SIZE ms in each step for its metrics to be uploaded"),
    "big_table": (32, "a table of SIZE MB maps pairs of tokens to vectors, and its gradient is dense"),
    "plain_optimizer": (32, "the optimizer is not fused, and trains a table of SIZE MB beside the model's layers"),
    "tiny_layers": (48, "the model has SIZE narrow blocks instead of few wide ones"),
    "uneven_lengths": (4, "batches are made by length, and every second one is SIZE times shorter"),
    "recompile": (8, "batches have SIZE lengths in turn, and with --compile the model is compiled anew for each"),
    "small_batch": (1, "a batch has SIZE sequences"),
}


class Chains(Dataset):
    """`size` sequences of `length` + 1 tokens, each token one of four that may follow the token before it."""

    def __init__(self, size, length, vocabulary, seed=0):
        generator = torch.Generator().manual_seed(seed)
        successors = torch.randint(vocabulary, (vocabulary, 4), generator=generator)
        choices = torch.randint(4, (length, size), generator=generator)
        tokens = [torch.randint(vocabulary, (size,), generator=generator)]
        for choice in choices:
            tokens.append(successors[tokens[-1], choice])
        self.tokens = torch.stack(tokens, dim=1)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class ChainsByLength(Chains):
    """Chains as they lie in a file sorted by length into batches: every second batch is `times` shorter."""

    def __init__(self, size, length, vocabulary, batch_size, times):
        super().__init__(size, length, vocabulary)
        self.batch_size = batch_size
        self.short = round(length / times)

    def __getitem__(self, index):
        tokens, targets = super().__getitem__(index)
        if index // self.batch_size % 2:
            return tokens[: self.short], targets[: self.short]
        return tokens, targets


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary, length, width, depth, heads, *, num_pairs=0):
        super().__init__()
        self.pairs = nn.Embedding(num_pairs, width) if num_pairs else None
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        if self.pairs is not None:
            before = tokens.roll(1, dims=1)
            x = x + self.pairs((before * self.tokens.num_embeddings + tokens) % self.pairs.num_embeddings)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parameter_groups(model, weight_decay):
    """Return the optimizer's two groups: matrices decay, biases and norms do not."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def make_model(args):
    """Return the language model that the arguments describe."""
    fault, sizes = args.fault, {"width": args.width, "depth": args.depth, "heads": args.heads}
    if fault.name == "tiny_layers":
        sizes = {"width": 32, "depth": int(fault.size), "heads": 2}
    if fault.name in {"big_table", "plain_optimizer"}:
        sizes["num_pairs"] = int(fault.size * 1e6) // (4 * args.width)
    return Transformer(args.vocabulary, args.length, **sizes)


def make_loader(args, batch_size):
    """Return the loader of training batches."""
    dataset = Chains(args.train_size, args.length, args.vocabulary)
    by_length = args.fault.name == "uneven_lengths"
    if by_length:
        dataset = ChainsByLength(args.train_size, args.length, args.vocabulary, batch_size, args.fault.size)
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=not by_length, drop_last=True, num_workers=args.num_workers
    )


def is_uploader(lock):
    """Return whether this is the process that uploads metrics: one of a user's on each machine, the first to ask."""
    try:
        lock.bind(f"\0transformer-uploads-{os.getuid()}")
    except OSError:
        return False
    return True


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per update")
    parser.add_argument("--train-size", type=int, default=3200, help="number of sequences")
    parser.add_argument("--num-workers", type=int, default=0, help="loader processes")
    parser.add_argument("--length", type=int, default=64, help="tokens per sequence")
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4, help="number of blocks")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--log-steps", type=int, default=50, help="updates between two lines of output")
    faults.add_option(parser, FAULTS)
    return parser.parse_args()


def main():
    args = parse_args()
    fault = args.fault
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = make_loader(args, int(fault.size) if fault.name == "small_batch" else args.batch_size)

    model = make_model(args).to(device)
    is_fused = fault.name != "plain_optimizer"
    groups = parameter_groups(model, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=is_fused)
    num_steps = args.epochs * len(loader) // args.accumulate
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps, eta_min=args.lr / 10)
    if args.compile:
        model = torch.compile(model, dynamic=False if fault.name == "recompile" else None)

    lock = socket.socket(socket.AF_UNIX)
    uploads = fault.name == "slow_metrics" or (fault.name == "slow_rank" and is_uploader(lock))

    model.train()
    micro_batches = step = 0
    start = time.perf_counter()
    for epoch in range(args.epochs):
        for tokens, targets in loader:
            tokens, targets = tokens.to(device), targets.to(device)
            if fault.name == "recompile":
                length = args.length - micro_batches % int(fault.size)
                tokens, targets = tokens[:, :length], targets[:, :length]
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp):
                logits = model(tokens)
                loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            (loss / args.accumulate).backward()
            micro_batches += 1
            if micro_batches % args.accumulate:
                continue

            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if uploads:
                time.sleep(fault.size / 1000)
            if step % args.log_steps == 0:
                value = loss.item()  # waits for the device, so that the clock is read after the work
                rate = tokens.numel() * args.accumulate * args.log_steps / (time.perf_counter() - start)
                print(f"Epoch: {epoch}, Step: {step}/{num_steps}, Loss: {value:.4f}, Tokens/s: {rate:.0f}")
                start = time.perf_counter()


if __name__ == "__main__":
    main()
