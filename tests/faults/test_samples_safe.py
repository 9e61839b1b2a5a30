"""A person may profile the samples where they lie: whatever was in their folder is the same afterwards."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import RunSummary
from tests.commands import dpdoctor
from tests.faults.conftest import LITTLE, NO_WALL, SHORT, in_turn

SAMPLES = Path(__file__).parents[2] / "samples"
# Little data: the samples are to train, not to be measured.
ARGS = {
    "gan.py": "--train-size 256 --batch-size 4 --num-workers 1",
    "mnist_lenet.py": "--train-size 256 --batch-size 4 --num-workers 1",
    "resnet.py": "--arch resnet18 --image-size 32 --train-size 128 --batch-size 2 --num-workers 1",
    "transformer.py": "--train-size 128 --accumulate 2 --amp --width 32 --depth 1 --length 8",
}


# Those that distribute themselves: how they are started, what they need, and how they exchange gradients.
TORCHRUN = ("--nproc", "2")
NATIVE = {
    "cifar_handmade.py": ((), None, "hand-written"),
    "ddp_torchrun.py": (TORCHRUN, None, "ddp"),
    "fsdp2_torchrun.py": (TORCHRUN, None, "fsdp2"),
    "lightning_module.py": ((), "lightning", "ddp"),
    "hf_trainer.py": (TORCHRUN, "transformers", "ddp"),
}
USUAL = "fsdp2_torchrun.py"  # tests/faults/test_native.py has the like of the others


def test_every_sample_is_tried():
    assert {path.name for path in SAMPLES.glob("*.py")} == {*ARGS, *NATIVE, "faults.py"}


@pytest.mark.parametrize("sample", [name if name == USUAL else in_turn(name) for name in NATIVE])
def test_a_sample_that_distributes_itself_is_seen_as_it_is(tmp_path, sample):
    started, needed, strategy = NATIVE[sample]
    if needed is not None:
        pytest.importorskip(needed)
    folder = tmp_path / "samples"
    shutil.copytree(SAMPLES, folder)
    before = contents(folder)
    options = ("--modes", "native", "--no-baseline", *started, *LITTLE, "--out", str(tmp_path / "run"))
    done = dpdoctor("profile", sample, *options, cwd=folder)
    if NO_WALL in done.stdout.replace("\n", " "):
        pytest.skip("this machine lets no user make a mount namespace, in which files are protected")
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(folder) == before
    mode = rundir.read_json(tmp_path / "run" / rundir.SUMMARY, RunSummary).modes["native"]
    assert mode.world_size == 2
    assert [way.name for way in mode.conversion.strategies] == [strategy]
    assert mode.batch.global_ == pytest.approx(2 * mode.batch.per_device)


@pytest.mark.parametrize(
    ("sample", "modes"),
    [
        ("gan.py", ("single", "ddp")),
        ("transformer.py", ("single", "ddp")),
        # Two ranks that import torchvision do nothing more to the files than one.
        ("mnist_lenet.py", ("single", "single")),
        in_turn("resnet.py", ("single", "single")),
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
