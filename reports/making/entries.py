"""What the gallery shows: the samples as they are, and with the faults that a CPU shows."""

from __future__ import annotations

from dataclasses import dataclass

# As long as a mode trains at most, in rounds enough for intervals of what an ablation gains.
OPTIONS = ("--time-budget", "40", "--rounds", "8", "--keep-going", "--quiet")

MNIST = ("--no-affine", "--batch-size", "16", "--epochs", "1000")
RESNET = (
    *("--arch", "resnet18", "--image-size", "32", "--batch-size", "16", "--num-workers", "0"),
    *("--train-size", "3200", "--epochs", "1000"),
)
TRANSFORMER = ("--epochs", "1000")
GAN = ("--epochs", "10000", "--batch-size", "16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run of the gallery: a sample with its arguments, profiled in these modes; `what` says what is in it."""

    what: str
    script: str
    args: tuple[str, ...]
    modes: str = "ddp"
    options: tuple[str, ...] = ()


# By name, which is that of the folder; healthy ones first.
ENTRIES = {
    "lenet": Entry(
        what="LeNet on digits, as it is: DataParallel, DDP and FSDP on two ranks.",
        script="samples/mnist_lenet.py",
        args=("--epochs", "1000"),
        modes="dp,ddp,fsdp",
    ),
    "resnet": Entry(
        what="ResNet-18 on random images, as it is: DDP and FSDP on two ranks.",
        script="samples/resnet.py",
        args=("--arch", "resnet18", "--num-workers", "0", "--batch-size", "32", "--epochs", "1000"),
        modes="ddp,fsdp",
    ),
    "transformer": Entry(
        what="A small transformer, as it is: DDP and FSDP on two ranks.",
        script="samples/transformer.py",
        args=("--batch-size", "32", *TRANSFORMER),
        modes="ddp,fsdp",
    ),
    "gan": Entry(
        what="A GAN, two models with an optimizer each, as it is.",
        script="samples/gan.py",
        args=("--epochs", "1000", "--num-workers", "1"),
    ),
    "handmade": Entry(
        what="A script that spawns its ranks and reduces each gradient by itself, observed as it is.",
        script="samples/cifar_handmade.py",
        args=(),
        modes="native",
    ),
    "slow-disk": Entry(
        what="Planted: reading an image waits 3 ms for the disk.",
        script="samples/mnist_lenet.py",
        args=(*MNIST, "--fault", "slow_disk:3"),
    ),
    "stall-items": Entry(
        what="Planted: one image in 512 waits 100 ms for the disk.",
        script="samples/mnist_lenet.py",
        args=(*MNIST, "--num-workers", "2", "--fault", "stall_items:100"),
    ),
    "checkpoint-often": Entry(
        what="Planted: model and optimizer are saved every 4 steps.",
        script="samples/resnet.py",
        args=(*RESNET, "--fault", "checkpoint_often:4"),
    ),
    "gc-churn": Entry(
        what="Planted: every step leaves 50,000 values for the garbage collector, which is called by hand.",
        script="samples/gan.py",
        args=(*GAN, "--num-workers", "1", "--fault", "gc_churn:50000"),
    ),
    "too-many-threads": Entry(
        what="Planted: torch is told to compute with 5 threads on each rank.",
        script="samples/resnet.py",
        args=(*RESNET, "--fault", "too_many_threads:5"),
        options=("--time-budget", "90"),
    ),
    "big-buffers": Entry(
        what="Planted: the model keeps 200 MB of past features in a buffer, which DDP broadcasts in each step.",
        script="samples/resnet.py",
        args=(*RESNET, "--fault", "big_buffers:200"),
    ),
    "slow-rank": Entry(
        what="Planted: one rank uploads metrics for 40 ms in each step, and the others wait.",
        script="samples/transformer.py",
        args=(*TRANSFORMER, "--batch-size", "16", "--fault", "slow_rank:40"),
    ),
    "big-table": Entry(
        what="Planted: a table of 80 MB whose gradient is dense and is reduced whole.",
        script="samples/transformer.py",
        args=(*TRANSFORMER, "--fault", "big_table:80"),
    ),
}
