"""`dpdoctor compare` on run directories."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from dpdoctor import rundir
from dpdoctor.cli import main
from dpdoctor.report.comparison.rows import ALIKE
from tests.builders import compared_pairs as pairs
from tests.builders import traced_runs
from tests.builders.run_directories import write


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["compare", *(str(arg) for arg in args)])


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    """Return a run, and one whose DDP waits longer for data."""
    before, after = pairs.with_ddp((60, 1, 20, 48, 5, 8)), pairs.with_ddp(pairs.SLOWER_MS)
    return write(tmp_path / "before", before.run), write(tmp_path / "after", after.run)


def test_two_runs_are_compared_in_the_terminal(dirs: tuple[Path, Path]) -> None:
    done = run(*dirs)
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "B is slower than A" in said
    assert "ddp (0.705x)" in said
    assert "data_wait" in done.stdout
    assert "One launch each" in done.stdout


def test_json_is_the_comparison(dirs: tuple[Path, Path]) -> None:
    found = json.loads(run(*dirs, "--format", "json").stdout)
    assert [one["path"] for one in found["runs"]] == [str(path) for path in dirs]
    change = found["modes"]["ddp"]["figures"]["throughput"]["changes"][0]
    assert change["verdict"] == "less"
    assert change["ratio"]["low"] < change["ratio"]["value"] < change["ratio"]["high"] < 1


def test_the_page_is_written_and_what_is_printed_stays_clean(dirs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run(*dirs, "--format", "markdown", "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("### dpdoctor: after against before\n")
    assert done.stderr == f"Report: {out}\n"
    assert "comparison.json" in out.read_text()


def test_runs_of_traces(tmp_path: Path) -> None:
    roots = [write(tmp_path / name, traced_runs.late_run().run) for name in "ab"]
    done = run(*roots)
    assert done.exit_code == 0, done.output
    assert ALIKE in " ".join(done.stdout.split())
    assert "traced step" in " ".join(done.stdout.split())


def test_one_run_alone_is_a_usage_error(dirs: tuple[Path, Path]) -> None:
    done = run(dirs[0])
    assert done.exit_code == 2
    assert "two run directories" in done.output


def test_what_is_no_run_directory_is_named(dirs: tuple[Path, Path], tmp_path: Path) -> None:
    done = run(dirs[0], tmp_path / "nothing")
    assert done.exit_code == 1
    assert f"{tmp_path / 'nothing'} is not a directory" in done.output


def test_another_schema_says_which_version_reads_it(dirs: tuple[Path, Path]) -> None:
    header = dirs[1] / rundir.HEADER
    newer = {**msgspec.json.decode(header.read_bytes()), "schema": 7, "dpdoctor": "9.1.0"}
    header.write_bytes(msgspec.json.encode(newer))
    done = run(*dirs)
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert re.findall(r"schema \d", said) == ["schema 7"]
    assert "dpdoctor 9.1.0" in said


def test_a_page_that_cannot_be_written_is_an_error(dirs: tuple[Path, Path], tmp_path: Path) -> None:
    done = run(*dirs, "--out", tmp_path / "missing" / "page.html")
    assert done.exit_code == 1
    assert "cannot write" in done.output
