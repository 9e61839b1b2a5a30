"""`dpdoctor.load`: a run directory in Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dpdoctor
from dpdoctor import rundir
from dpdoctor.errors import RunDirectoryError
from dpdoctor.rules import diagnose
from tests.builders import run_directories, runs, traced_runs

HEAVY = ("torch", "torchvision", "plotly")
MODULES = """
import sys
import dpdoctor
{use}
print(*sorted({{"numpy", "scipy", "click", "rich", "jinja2", "msgspec", *{heavy}}} & set(sys.modules)))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return run_directories.write(tmp_path / "run", runs.cpu_run().run)


def loaded_modules(use: str) -> list[str]:
    code = MODULES.format(use=use, heavy=HEAVY)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("kind", [Path, str])
def test_it_is_the_run_analysed(root: Path, kind: type) -> None:
    loaded = dpdoctor.load(kind(root))
    assert loaded.summary == diagnose(runs.cpu_run()).summary
    assert loaded.analysis.run.path == root
    assert all(fact in repr(loaded) for fact in ("under ddp", "1.41x"))


def test_traces_are_a_run_as_well(tmp_path: Path) -> None:
    root = run_directories.write(tmp_path / "run", traced_runs.late_run().run)
    assert dpdoctor.load(root).summary.modes["trace"] == traced_runs.late_run().summary.modes["trace"]


def test_nothing_is_written(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    dpdoctor.load(root)._repr_html_()
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_importing_the_package_loads_nothing() -> None:
    assert loaded_modules("") == []


def test_loading_and_showing_takes_neither_torch_nor_plotly(root: Path) -> None:
    found = loaded_modules(f"dpdoctor.load({str(root)!r})._repr_html_()")
    assert "numpy" in found
    assert set(HEAVY).isdisjoint(found)


@pytest.mark.parametrize("file", [rundir.HEADER, rundir.SUMMARY])
def test_another_schema_is_an_error_that_names_both_and_the_way_out(root: Path, file: str) -> None:
    found = json.loads((root / rundir.HEADER).read_text())
    (root / file).write_text(json.dumps({**found, "schema": 99, "dpdoctor": "9.9.9"}))
    with pytest.raises(RunDirectoryError, match=r"schema 99\b.*schemas 1 and 2\b.*\bdpdoctor 9\.9\.9\b"):
        dpdoctor.load(root)


@pytest.mark.parametrize(
    ("name", "why"),
    [("nowhere", "is not a directory"), (".", r"no header\.json")],
)
def test_what_is_no_run_directory(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(RunDirectoryError, match=why):
        dpdoctor.load(tmp_path / name)


def test_a_damaged_run_is_named(root: Path) -> None:
    (root / rundir.HEADER).write_text('{"schema": 1, "cut')
    with pytest.raises(RunDirectoryError, match=r"header\.json is damaged"):
        dpdoctor.load(root)
