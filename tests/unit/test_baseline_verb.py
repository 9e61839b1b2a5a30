"""`dpdoctor baseline` on run directories."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpdoctor.cli import main
from dpdoctor.gate import baselines
from tests.builders import launched_runs, run_directories


def baseline(*args: object) -> Result:
    return CliRunner().invoke(main, ["baseline", *(str(arg) for arg in args)])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return run_directories.write(tmp_path / "run", launched_runs.run(launched_runs.launch(10)))


@pytest.fixture
def saved(run_dir: Path, tmp_path: Path) -> Path:
    path = tmp_path / "baselines" / "main.json"
    done = baseline("save", run_dir, path)
    assert (done.exit_code, done.output) == (0, f"Baseline: {path}\n")
    return path


def test_save_and_accept_leave_a_record_of_who_when_and_why(saved: Path, tmp_path: Path) -> None:
    os.environ["GITHUB_ACTOR"] = "grace"
    slower = run_directories.write(tmp_path / "slower", launched_runs.run(launched_runs.launch(12)))
    done = baseline("accept", slower, saved, "--reason", "a larger model, hf_abcdefghijklmnopqrst")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"Baseline: {saved}, ")
    assert re.findall(r"ddp [\d.]+ ms", done.output) == ["ddp 12.0 ms", "ddp 10.0 ms"]
    first, second = baselines.read(saved).audit
    assert first.reason == "first of its name"
    assert (second.by, second.reason) == ("grace", "a larger model, <redacted>")
    assert first.at <= second.at
    assert second.at.endswith("Z")


@pytest.mark.parametrize(
    ("args", "said"), [([], "Missing option '--reason'"), (["--reason", "  "], "--reason is empty")]
)
def test_accept_needs_a_reason(saved: Path, run_dir: Path, args: list[str], said: str) -> None:
    done = baseline("accept", run_dir, saved, *args)
    assert done.exit_code == 2
    assert said in done.output
    assert len(baselines.read(saved).audit) == 1


def test_save_never_replaces(saved: Path, run_dir: Path) -> None:
    done = baseline("save", run_dir, saved)
    assert done.exit_code == 1
    assert "exists already" in done.output


def test_the_list_shows_each_with_its_record(saved: Path, run_dir: Path) -> None:
    os.environ["GITHUB_ACTOR"] = "grace"
    reason = "line one\nmain: 1 ms \x1b[31mred"
    baseline("accept", run_dir, saved, "--reason", reason)
    done = baseline("list", saved.parent)
    assert done.exit_code == 0, done.output
    title, newest, oldest = done.output.splitlines()
    name, *measured = re.split(r": |, ", title)
    assert (name, measured) == ("main", ["train.py --epochs 2", "ddp 10.0 ms"])
    assert newest.endswith("grace: line one main: 1 ms red")
    assert oldest.endswith(": first of its name")


def test_the_list_names_damaged_files_and_shows_the_others(saved: Path) -> None:
    (saved.parent / "damaged.json").write_text("{")
    done = baseline("list", saved.parent)
    assert done.exit_code == 1
    assert "main: train.py" in done.output
    assert "damaged.json is damaged" in done.output
    assert "1 file in" in done.output


def test_without_a_directory_the_usual_one_is_listed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent.parent)
    assert "main: train.py" in baseline("list").output
    monkeypatch.chdir(saved.parent)
    done = baseline("list")
    assert done.exit_code == 1
    assert "baselines is not a directory" in done.output


def test_help_shows_what_a_group_is_for() -> None:
    done = baseline("--help")
    assert [name in done.output for name in ("save", "list", "accept")] == [True] * 3
