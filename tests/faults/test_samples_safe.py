"""A person may profile the samples where they lie: whatever was in their folder is the same afterwards."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from dpdoctor import rundir
from tests.commands import dpdoctor
from tests.faults.conftest import SHORT

SAMPLES = Path(__file__).parents[2] / "samples"
# Little data: the samples are to train, not to be measured.
ARGS = {
    "gan.py": "--train-size 256 --batch-size 4 --num-workers 1",
    "mnist_lenet.py": "--train-size 256 --batch-size 4 --num-workers 1",
    "resnet.py": "--arch resnet18 --image-size 32 --train-size 128 --batch-size 2 --num-workers 1",
    "transformer.py": "--train-size 128 --accumulate 2 --amp --width 32 --depth 1 --length 8",
}


def test_every_sample_is_tried():
    assert {path.name for path in SAMPLES.glob("*.py")} == {*ARGS, "faults.py"}


@pytest.mark.parametrize(
    ("sample", "modes"),
    [
        ("gan.py", ("single", "ddp")),
        ("transformer.py", ("single", "ddp")),
        # Two ranks that import torchvision do nothing more to the files than one.
        ("mnist_lenet.py", ("single", "single")),
        ("resnet.py", ("single", "single")),
    ],
)
def test_profiling_a_sample_twice_changes_no_file_that_was_there(tmp_path, sample, modes):
    folder = tmp_path / "samples"
    shutil.copytree(SAMPLES, folder)
    (folder / "notes.txt").write_text("a file of the user's")
    for mode in modes:
        before = contents(folder)
        profile_in(folder, sample, mode)
        after = contents(folder)
        assert {path: after.get(path) for path in before} == before
        assert {path.parts[0] for path in after.keys() - before.keys()} == {"reports"}
    assert len(list(folder.glob(f"reports/*/{rundir.REPORT}"))) == 2


def contents(folder: Path) -> dict[Path, str]:
    """Return what every file below a folder holds, as a hash."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def profile_in(folder: Path, sample: str, mode: str) -> None:
    """Profile a sample from its own folder, with the run directory where it lands by default."""
    options = ("--modes", mode, "--no-baseline", *SHORT)
    done = dpdoctor("profile", sample, *options, "--", *ARGS[sample].split(), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
