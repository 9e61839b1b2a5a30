"""What is planted: faults that are visible on the CPU with gloo, and scripts without one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .stopwatch import fetched, slept

SAMPLES = "samples"

MNIST = ("--no-affine", "--batch-size", "16", "--epochs", "1000")
SLOW_TRANSFORM, SLOW_DISK = ("--fault", "slow_transform:{size}"), ("--fault", "slow_disk:{size}")
RESNET = (
    *("--arch", "resnet18", "--image-size", "32", "--batch-size", "16", "--num-workers", "0"),
    *("--train-size", "3200", "--epochs", "1000"),
)
TRANSFORMER = ("--epochs", "1000")
# Steps of half a second and more need longer for their ablations.
LONG = ("--time-budget", "90")
GAN = ("--epochs", "10000", "--batch-size", "16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A script with something planted in it, or healthy.

    Attributes:
        script: a sample; in mode native one beside this file; where `third_party` a key of injections.INJECTIONS.
        args: of the script; `{size}` stands for the size that is drawn.
        sizes: least and most of it; None: nothing is planted.
        whole: the size is a whole number.
        mode: that it slows down.
        options: further ones of `dpdoctor profile`.
        rules: those that name it; empty: no warning may appear.
        seconds: that a step loses to a size of it; None: how long it takes is not known beforehand.
    """

    script: str
    args: tuple[str, ...] = ()
    sizes: tuple[float, float] | None = None
    whole: bool = False
    mode: str
    options: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    seconds: Callable[[float], float] | None = None
    third_party: bool = False

    @property
    def healthy(self) -> bool:
        """Whether no warning may appear."""
        return not self.rules

    @property
    def usual(self) -> float | None:
        """A size in the middle of the range; None: nothing is planted."""
        size = math.sqrt(self.sizes[0] * self.sizes[1]) if self.sizes else None
        return round(size) if size and self.whole else size


def native(way: str, fault: str, sizes: tuple[float, float], *rules: str, options: tuple[str, ...] = ()) -> Entry:
    """Return an entry of native_job.py; whole sizes are whole numbers."""
    return Entry(
        script="native_job.py",
        args=(way, fault, "{size}"),
        sizes=sizes,
        whole=isinstance(sizes[0], int),
        mode="native",
        rules=rules,
        options=options,
    )


# What is planted in a job that distributes itself, alike in each of three ways.
IN_NATIVE = {
    f"{way}_{name}": entry
    for way in ("ddp", "fsdp2", "by_hand")
    for name, entry in {
        "healthy": Entry(script="native_job.py", args=(way, "none", "--channels", "96"), mode="native", options=LONG),
        "slow_items": native(way, "slow_items", (10.0, 40.0), "data_starved"),
        "slow_rank": native(way, "slow_rank", (10.0, 40.0), "straggler"),
        "gc_churn": native(way, "gc_churn", (10_000, 100_000), "gc_pauses"),
        "too_many_threads": native(way, "too_many_threads", (6, 12), "cpu_oversubscription", options=LONG),
        "small_layers": native(way, "small_layers", (60, 200), "small_collectives"),
        "extra_all_reduce": native(way, "extra_all_reduce", (20, 80), "exposed_communication", "no_overlap"),
    }.items()
}

ENTRIES = {
    "slow_transform": Entry(
        script="mnist_lenet.py",
        args=(*MNIST, *SLOW_TRANSFORM),
        sizes=(1, 4),
        mode="single",
        rules=("data_starved",),
        seconds=fetched((*MNIST, *SLOW_TRANSFORM)),
    ),
    "slow_disk": Entry(
        script="mnist_lenet.py",
        args=(*MNIST, *SLOW_DISK),
        sizes=(1, 4),
        mode="ddp",
        rules=("data_starved",),
        seconds=fetched((*MNIST, *SLOW_DISK), ranks=2),
    ),
    "stall_items": Entry(
        script="mnist_lenet.py",
        args=(*MNIST, "--num-workers", "2", "--fault", "stall_items:{size}"),
        sizes=(60, 120),
        mode="single",
        rules=("data_starved",),
    ),
    "new_iterator": Entry(
        script="mnist_lenet.py",
        args=(*MNIST, "--num-workers", "1", "--fault", "new_iterator:{size}"),
        sizes=(1, 4),
        whole=True,
        mode="single",
        rules=("data_starved",),
    ),
    "short_epochs": Entry(
        script="gan.py",
        args=(*GAN, "--num-workers", "2", "--fault", "short_epochs:{size}"),
        sizes=(3, 8),
        whole=True,
        mode="single",
        rules=("data_starved",),
    ),
    "evaluate_often": Entry(
        script="mnist_lenet.py",
        args=(*MNIST, "--fault", "evaluate_often:{size}"),
        sizes=(10, 50),
        whole=True,
        mode="single",
        rules=("evaluation_share",),
    ),
    "checkpoint_often": Entry(
        script="resnet.py",
        args=(*RESNET, "--fault", "checkpoint_often:{size}"),
        sizes=(2, 8),
        whole=True,
        mode="single",
        rules=("checkpoint_share",),
    ),
    "gc_churn": Entry(
        script="gan.py",
        args=(*GAN, "--num-workers", "1", "--fault", "gc_churn:{size}"),
        sizes=(1e3, 1e5),
        whole=True,
        mode="single",
        rules=("gc_pauses",),
    ),
    "too_many_threads": Entry(
        script="resnet.py",
        args=(*RESNET, "--batch-size", "8", "--fault", "too_many_threads:{size}"),
        # Fewer threads may cost less than communication does at this batch size.
        sizes=(6, 12),
        whole=True,
        mode="ddp",
        # Threads that wait for a core make steps so slow that fewer of them fit.
        options=("--ablations", "fair_threads", *LONG),
        rules=("cpu_oversubscription",),
    ),
    "big_buffers": Entry(
        script="resnet.py",
        args=(*RESNET, "--fault", "big_buffers:{size}"),
        sizes=(100, 300),
        mode="ddp",
        options=LONG,
        rules=("buffer_broadcast",),
    ),
    "slow_rank": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--batch-size", "16", "--fault", "slow_rank:{size}"),
        sizes=(15, 80),
        mode="ddp",
        rules=("straggler",),
        seconds=slept(1),
    ),
    "slow_metrics": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--batch-size", "16", "--fault", "slow_metrics:{size}"),
        sizes=(25, 80),
        mode="ddp",
        rules=("own_code",),
        seconds=slept(1),
    ),
    "uneven_lengths": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--batch-size", "16", "--fault", "uneven_lengths:{size}"),
        sizes=(1.5, 4),
        mode="ddp",
        rules=("uneven_batches",),
    ),
    "accumulate": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--batch-size", "2", "--accumulate", "{size}"),
        sizes=(3, 8),
        whole=True,
        mode="ddp",
        rules=("accumulation_sync",),
    ),
    "big_table": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--fault", "big_table:{size}"),
        sizes=(30, 120),
        mode="ddp",
        options=LONG,
        rules=("exposed_communication",),
    ),
    "plain_optimizer": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--fault", "plain_optimizer:{size}"),
        sizes=(10, 40),
        mode="single",
        rules=("optimizer_unfused",),
    ),
    "tiny_layers": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--fault", "tiny_layers:{size}"),
        sizes=(8, 24),
        whole=True,
        mode="fsdp",
        options=("--fsdp-wrap", "Block", *LONG),
        rules=("small_collectives",),
    ),
    "imagenet_sleep": Entry(
        script="imagenet",
        args=("--dummy", "--no-accel", "-a", "resnet18", "-b", "2", "-j", "0"),
        sizes=(60, 200),
        mode="single",
        options=LONG,
        rules=("data_starved",),
        seconds=slept(2),
        third_party=True,
    ),
    "mingpt_slow_rank": Entry(
        script="minGPT",
        args=("--trainer.num_workers=0", "--data.ndigit=3"),
        sizes=(20, 80),
        mode="ddp",
        rules=("straggler",),
        seconds=slept(1),
        third_party=True,
    ),
    "healthy_transformer": Entry(
        script="transformer.py",
        args=(*TRANSFORMER, "--batch-size", "64", "--width", "64", "--length", "128"),
        mode="ddp",
        options=LONG,
    ),
    "healthy_resnet": Entry(
        script="resnet.py",
        args=("--arch", "resnet18", "--num-workers", "0", "--batch-size", "32", "--epochs", "1000"),
        mode="single",
        options=LONG,
    ),
    "healthy_gan": Entry(
        script="gan.py",
        args=("--epochs", "1000", "--width", "32", "--batch-size", "64"),
        mode="single",
        options=LONG,
    ),
    **IN_NATIVE,
}
