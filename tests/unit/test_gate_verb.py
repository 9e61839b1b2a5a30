"""`dpdoctor gate`, as far as nothing needs to be launched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath

import pytest
from click.testing import CliRunner, Result

from dpdoctor.cli import main
from dpdoctor.cli.gate import LEAST_PAIRS, MOST_PAIRS
from dpdoctor.gate import baselines, calibration, design
from dpdoctor.gate.baselines import Author
from dpdoctor.gate.model import Calibration
from dpdoctor.gate.recorded import recorded, workload
from dpdoctor.records import Run
from dpdoctor.report.gate import ci
from tests.builders import launched_runs, run_directories
from tests.builders.noises import CALIBRATED

TIMES_MS = (100, 101, 99, 100, 100.5)
AUTHOR = Author(at="2026-01-02T03:04:05Z", by="ada", reason="first")


def gate(*args: object) -> Result:
    return CliRunner().invoke(main, ["gate", *(str(arg) for arg in args)])


def run(slowdown: float = 1.0) -> Run:
    launches = (launched_runs.launch(slowdown * ms, number) for number, ms in enumerate(TIMES_MS, 1))
    return launched_runs.run(*launches)


@pytest.fixture
def stored(tmp_path: Path) -> Sequence[object]:
    """Return the options of a gate against a baseline on a calibrated machine."""
    found = run()
    baselines.save(tmp_path / "main.json", recorded(found), AUTHOR)
    kept = Calibration(
        created=AUTHOR.at,
        dpdoctor="0.1.0",
        workload=str(workload(found.header.spec)),
        fingerprint=found.header.fingerprint,
        modes={"ddp": CALIBRATED},
    )
    calibration.keep(tmp_path / "kept", kept)
    return ("--baseline", tmp_path / "main.json", "--calibrations", tmp_path / "kept")


@pytest.mark.parametrize(
    ("slowdown", "outcome", "code"), [(1.0, "pass", 0), (1.2, "regressed", 3), (1.04, "inconclusive", 4)]
)
def test_a_run_against_a_baseline(
    stored: Sequence[object], tmp_path: Path, slowdown: float, outcome: str, code: int
) -> None:
    root = run_directories.write(tmp_path / "run", run(slowdown))
    done = gate(root, *stored, "--format", "json", "--out", tmp_path / "out")
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert (found["kind"], found["outcome"]) == ("baseline", outcome)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"gate.json", "gate.md", "gate.xml"}
    assert json.loads((tmp_path / "out/gate.json").read_text()) == found


def test_without_out_nothing_is_written(stored: Sequence[object], tmp_path: Path) -> None:
    root = run_directories.write(tmp_path / "run", run())
    before = set(tmp_path.rglob("*"))
    done = gate(root, *stored)
    assert done.exit_code == 0, done.output
    assert "Passed" in done.output
    assert set(tmp_path.rglob("*")) == before


def test_counters_against_a_baseline(stored: Sequence[object], tmp_path: Path) -> None:
    root = run_directories.write(tmp_path / "run", run(1.5))
    done = gate(root, *stored[:2], "--exact", "--format", "json")
    assert (done.exit_code, json.loads(done.stdout)["kind"]) == (0, "exact")


def test_an_uncalibrated_machine_cannot_be_judged(stored: Sequence[object], tmp_path: Path) -> None:
    root = run_directories.write(tmp_path / "run", run(1.5))
    done = gate(root, *stored[:2], "--calibrations", tmp_path / "nothing")
    assert done.exit_code == 4
    assert "dpdoctor calibrate" in done.output


def test_a_damaged_baseline_is_an_error_with_the_place(stored: Sequence[object], tmp_path: Path) -> None:
    path = tmp_path / "main.json"
    path.write_text(path.read_text()[:500])
    done = gate(run_directories.write(tmp_path / "run", run()), *stored)
    assert done.exit_code == 1
    said = done.output.replace("\n", " ")
    assert f"{path} is damaged" in said
    assert "truncated" in said


def test_what_is_no_run_is_an_error(stored: Sequence[object], tmp_path: Path) -> None:
    done = gate(tmp_path / "nowhere", *stored)
    assert done.exit_code == 1
    assert "nowhere is not a directory" in done.output


@pytest.fixture
def checkouts(tmp_path: Path) -> Sequence[object]:
    for side in ("base", "head"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text("raise SystemExit('must not run')")
    return ("--base", tmp_path / "base", "--head", tmp_path / "head")


def test_without_a_calibration_nothing_is_launched(checkouts: Sequence[object], tmp_path: Path) -> None:
    done = gate(
        *checkouts, "train.py", "--calibrations", tmp_path / "none", "--out", tmp_path / "out", "--", "--epochs", 1
    )
    assert done.exit_code == 4, done.output
    assert "train.py --epochs 1" in " ".join(done.output.split())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"gate.json", "gate.md", "gate.xml"}
    assert json.loads((tmp_path / "out/gate.json").read_text())["outcome"] == "refused"


def test_a_directory_that_exists_is_not_overwritten(checkouts: Sequence[object], tmp_path: Path) -> None:
    done = gate(*checkouts, "train.py", "--out", tmp_path)
    assert done.exit_code == 1
    assert "exists already; nothing is overwritten" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give --base DIR and --head DIR"),
        (["train.py"], "give --base DIR and --head DIR"),
        (["--base", "base", "train.py"], "give --base DIR and --head DIR"),
        (["--base", "absent", "--head", "head", "train.py"], "'absent' does not exist"),
        (["--base", "base/train.py", "--head", "head", "train.py"], "is a file"),
        (["--base", "base", "--head", "head"], "give a SCRIPT, or a module with -m"),
        (["--base", "base", "--head", "head", "other.py"], "there is no script other.py in"),
        (["--base", "base", "--head", "head", "../outside.py"], "does not lie in base"),
        (["--base", "base", "--head", "head", "train.py", "--modes", "dpp"], "there is no mode 'dpp'"),
        (["--base", "base", "--head", "head", "train.py", "--tolerance", "0"], "--tolerance is 0; it must be above 0"),
        (["--base", "base", "--head", "head", "train.py", "--tolerance", "nan"], "--tolerance is nan"),
        (["--base", "base", "--head", "head", "train.py", "--max-pairs", "6"], "6 is not in the range 7<=x<=200"),
        (["--base", "base", "--head", "head", "train.py", "--quick", "--max-pairs", "9"], "leave out --max-pairs"),
        (["--base", "base", "--head", "head", "train.py", "--exact", "--quick"], "--quick is about time"),
        (["--base", "base", "--head", "head", "train.py", "--exact", "--tolerance", "3"], "--tolerance is about time"),
        (["run", "--baseline", "main.json", "--modes", "ddp"], "so --modes has no meaning"),
        (["run", "--baseline", "main.json", "--base", "base"], "so --base has no meaning"),
        (["--base", "base", "--head", "head", "--launcher", "torchrun", "train.py"], "--launcher is for mode native"),
        *(
            (["--base", "base", "--head", "head", "--exact", option, "8", "train.py"], f"{option} is about time")
            for option in ("--steps", "--rounds", "--time-budget")
        ),
        (["run", "--baseline", "main.json", "--quick"], "so --quick has no meaning"),
        (["run", "--baseline", "main.json", "--", "--epochs"], "so ARGS has no meaning"),
        (["--baseline", "main.json"], "give the RUN to judge"),
    ],
)
@pytest.mark.usefixtures("checkouts")
def test_options_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.py").touch()
    done = gate(*args)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "reports").exists()


def test_a_whole_path_below_both_checkouts_is_one_script(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    script = tmp_path / "base" / "train.py"
    script.write_text("raise SystemExit('must not run')")
    done = gate("--base", tmp_path / "base", "--head", tmp_path, script, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert "base and head would be the same" in " ".join(done.output.split())


def test_a_line_is_named_as_the_repository_has_it(
    stored: Sequence[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "repository" / "project"
    project.mkdir(parents=True)
    (tmp_path / "repository" / ".git").touch()  # a worktree has a file
    asked: list[PurePath] = []
    monkeypatch.setattr(ci, "workflow_commands", lambda _, root: asked.append(root) or "")
    monkeypatch.chdir(project)
    root = run_directories.write(tmp_path / "run", run())
    assert gate(root, *stored, "--format", "github").exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert gate(root, *stored, "--format", "github").exit_code == 0
    assert asked == [tmp_path / "repository", tmp_path]


def test_the_numbers_of_pairs_are_those_of_the_design() -> None:
    assert (design.LEAST_PAIRS, design.MOST_PAIRS) == (LEAST_PAIRS, MOST_PAIRS)
    assert design.sequence(LEAST_PAIRS).last.pairs == LEAST_PAIRS
