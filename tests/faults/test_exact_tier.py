"""One thing more in every step is found from one run each, whatever else the machine does; nothing more is not."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import ModeSummary, analyse
from dpdoctor.gate.exact import compare
from dpdoctor.gate.model import ExactResult
from tests.commands import dpdoctor
from tests.faults.conftest import SCRIPTS, arguments, in_turn

# Warm-up of a fixed length: the counted step is the same one of the script in every run.
FEW_STEPS = ("--warmup", "5", "--steps", "4", "--rounds", "1", "--trace-steps", "0", "--ablations", "none")
DDP = ("--modes", "ddp", "--no-baseline", *FEW_STEPS)
SCRIPT = str(SCRIPTS / "one_thing_more.py")
SAMPLES = Path(__file__).parents[2] / "samples"
SAMPLE_ARGS = ("--train-size", "1280")

Count = Callable[..., ModeSummary]


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Count:
    """Return a function that runs a script in ddp on two ranks and returns the mode, with its counters.

    What was run alike before is run again only `anew`.
    """
    directory, numbers = tmp_path_factory.mktemp("runs"), itertools.count()
    known: dict[tuple[object, ...], ModeSummary] = {}

    def run(script: str, *options: str, args: Sequence[str] = (), anew: bool = False) -> ModeSummary:
        key = (script, options, tuple(args))
        if anew or key not in known:
            known[key] = launched(script, *options, args=args)
        return known[key]

    def launched(script: str, *options: str, args: Sequence[str]) -> ModeSummary:
        root = directory / str(next(numbers))
        done = dpdoctor(*arguments(root, script, [*DDP, *options], args), cwd=directory)
        assert done.returncode == 0, done.stdout + done.stderr
        return analyse(rundir.read(root)).summary.modes["ddp"]

    return run


@pytest.fixture(scope="module")
def base(count: Count) -> ModeSummary:
    """Return a run that does nothing more."""
    return count(SCRIPT, args=["nothing"])


def changes(found: ExactResult) -> dict[str, tuple[object, object]]:
    return {item.name: (item.base, item.head) for item in found.differences}


def test_nothing_more_is_silent(count: Count, base: ModeSummary) -> None:
    found = compare(base, count(SCRIPT, args=["nothing"], anew=True), None)
    assert (found.outcome, found.differences, found.left_out) == ("pass", (), ())
    # Operators, all_reduce twice, its inputs three times, batches, allocations, memory.
    assert found.compared == 9


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("all_reduce", {"all_reduce.count": (1, 2), "all_reduce.bytes": (790_532, 790_536)}),
        ("half the bucket", {"all_reduce.count": (1, 2)}),
        ("item", {"syncs.item": (0, 1)}),
        ("float64 batch", {"inputs": ("float32 8x256", "float64 8x256"), "inputs.bytes": (8192, 16384)}),
        ("doubled batch", {"inputs": ("float32 8x256", "float32 16x256"), "inputs.bytes": (8192, 16384)}),
        ("memory", {"peak_memory_bytes": ()}),
    ],
)
def test_one_thing_more_is_a_regression(
    count: Count, base: ModeSummary, more: str, expected: dict[str, tuple[object, object]]
) -> None:
    found = compare(base, count(SCRIPT, args=[more]), None)
    assert found.outcome == "regressed", found
    told = changes(found)
    assert {*expected} <= {*told}
    assert {name: told[name] for name, values in expected.items() if values} == {
        name: values for name, values in expected.items() if values
    }


def test_a_wait_more_has_its_line(count: Count, base: ModeSummary) -> None:
    (item,) = (i for i in compare(base, count(SCRIPT, args=["item"]), None).differences if i.name == "syncs.item")
    number = next(n for n, line in enumerate(Path(SCRIPT).read_text().splitlines(), 1) if "loss.item()" in line)
    assert item.line == f"{SCRIPT}:{number}"


def test_what_chance_decides_is_learned_from_another_seed_and_left_out(count: Count) -> None:
    runs = [count(SCRIPT, "--seed", seed, args=["random transform"], anew=True) for seed in ("0", "0", "1")]
    alike = compare(runs[0], runs[1], None)
    assert (alike.outcome, alike.differences) == ("pass", ())
    found = compare(*runs)
    assert (found.outcome, found.differences) == ("pass", ())
    assert {"operators", "allocations"} <= {item.name for item in found.left_out}


# What a pull request may do to the sample, and the counter that shows it.
CHANGES = {
    "syncs.item": [("        optimizer.step()\n", "        optimizer.step()\n        print(loss.item())\n")],
    "all_reduce.count": [
        (
            "        optimizer.step()\n",
            "        optimizer.step()\n        torch.distributed.all_reduce(loss.detach())\n",
        )
    ],
    "inputs.bytes": [('"--batch-size", type=int, default=32', '"--batch-size", type=int, default=64')],
    "inputs": [
        ("images, labels = images.to(device)", "images, labels = images.double().to(device)"),
        ("LeNet().to(device)", "LeNet().double().to(device)"),
        ("model(images.to(device))", "model(images.double().to(device))"),
    ],
}


@pytest.fixture(scope="module")
def sample(count: Count) -> ModeSummary:
    """Return a run of samples/mnist_lenet.py."""
    return count(str(SAMPLES / "mnist_lenet.py"), args=SAMPLE_ARGS)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_sample_is_found(count: Count, sample: ModeSummary, tmp_path: Path, name: str) -> None:
    head = Path(shutil.copytree(SAMPLES, tmp_path / "head"), "mnist_lenet.py")
    text = head.read_text()
    for before, after in CHANGES[name]:
        assert before in text
        text = text.replace(before, after)
    head.write_text(text)
    found = compare(sample, count(str(head), args=SAMPLE_ARGS), None)
    assert found.outcome == "regressed"
    assert name in changes(found)


@pytest.mark.parametrize("repeats", [3, in_turn(20)])
def test_repeats_of_the_sample_are_silent(count: Count, sample: ModeSummary, repeats: int) -> None:
    for _ in range(repeats):
        found = compare(sample, count(str(SAMPLES / "mnist_lenet.py"), args=SAMPLE_ARGS, anew=True), None)
        assert (found.outcome, found.differences) == ("pass", ())
