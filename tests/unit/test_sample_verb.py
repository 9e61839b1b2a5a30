"""`dpdoctor sample` hands out what `samples/` holds, whole and runnable, and writes over nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpdoctor import cli

SAMPLES = Path(__file__).parents[2] / "samples"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.py") if path.stem != "faults")


def sample(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["sample", *words])


def test_it_lists_every_sample_with_a_line() -> None:
    lines = sample().output.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_it_writes_a_sample_and_what_it_imports(tmp_path: Path, name: str) -> None:
    assert sample(name, "--out", str(tmp_path / "new")).exit_code == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert written[f"{name}.py"] == (SAMPLES / f"{name}.py").read_bytes()
    assert ("faults.py" in written) == (b"import faults" in written[f"{name}.py"])
    assert sample(name, "--out", str(tmp_path / "new")).exit_code == 0  # the same once more


def test_it_writes_over_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text("mine")
    done = sample("mnist_lenet", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "faults.py exists and is another file; give --out DIR" in done.output
    assert (tmp_path / "faults.py").read_text() == "mine"


def test_an_unknown_sample_is_a_usage_error() -> None:
    done = sample("imagenet")
    assert done.exit_code == 2
    assert "known: cifar_handmade, ddp_torchrun" in done.output
