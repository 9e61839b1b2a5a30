"""The composite action: its steps are run as GitHub's runner runs them, on two checkouts of a tiny script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.commands import forking
from tests.faults.conftest import SCRIPTS

ACTION = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text())
# The shell of a step as GitHub calls it.
BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c")
EXPRESSION = re.compile(r"\$\{\{\s*(?P<what>[\w.]+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that ran the action: exit code of its first step that failed, what it printed, its summary."""

    exit_code: int
    printed: str
    summary: str
    outputs: dict[str, str] = field(default_factory=dict)


class Runner:
    """Runs the steps of the action in order; after one that failed only those that always run."""

    def __init__(self, workspace: Path, inputs: dict[str, str]) -> None:
        defaults = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
        self._known = {f"inputs.{name}": value for name, value in {**defaults, **inputs}.items()}
        self._workspace = workspace
        self._files = {name: workspace / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for path in self._files.values():
            path.touch()

    def run(self) -> Job:
        code, printed = 0, ""
        for step in ACTION["runs"]["steps"]:
            if code and "always()" not in step.get("if", ""):
                continue
            done = self._step(step)
            code, printed = code or done.returncode, printed + done.stdout
        outputs = {name: self._filled(output["value"]) for name, output in ACTION["outputs"].items()}
        return Job(
            exit_code=code, printed=printed, summary=self._files["GITHUB_STEP_SUMMARY"].read_text(), outputs=outputs
        )

    def _step(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        given = {name: self._filled(value) for name, value in step["env"].items()}
        files = {name: str(path) for name, path in self._files.items()}
        env = {**forking(), **files, "RUNNER_TEMP": str(self._workspace), **given}
        done = subprocess.run(
            [*BASH, step["run"]], cwd=self._workspace, env=env, capture_output=True, text=True, check=False
        )
        for line in self._files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, value = line.partition("=")
            self._known[f"steps.{step.get('id')}.outputs.{name}"] = value
        return done

    def _filled(self, text: str) -> str:
        return EXPRESSION.sub(lambda match: self._known[match["what"]], text)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return a directory with two checkouts of the same tiny script."""
    for side in ("base", "head"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text((SCRIPTS / "one_thing_more.py").read_text())
    return tmp_path


def run(workspace: Path, **inputs: str) -> Job:
    known = {"script": "train.py", "args": "nothing", "exact": "true", "python": sys.executable}
    return Runner(workspace, {**known, **inputs}).run()


def test_no_input_is_a_part_of_a_script() -> None:
    assert [step["run"] for step in ACTION["runs"]["steps"] if "${{" in step["run"]] == []


def test_what_is_alike_passes_with_a_summary_and_a_test_report(workspace: Path) -> None:
    """Whatever its arguments look like: a line of them is an argument and nothing else."""
    job = run(workspace, args="$(touch planted); `touch planted`\n--more\n")
    assert job.exit_code == 0, job
    assert job.summary.startswith("### Passed: ddp")
    assert job.printed.startswith("::notice title=dpdoctor gate::ddp, counters: a step does what it did")
    assert ET.parse(job.outputs["junit"]).getroot().attrib["failures"] == "0"
    result = json.loads(Path(job.outputs["directory"], "gate.json").read_text())
    assert (result["kind"], result["outcome"]) == ("exact", "pass")
    assert result["head"]["command"][-2:] == ["$(touch planted); `touch planted`", "--more"]
    assert not (workspace / "planted").exists()


def test_a_wait_more_fails_the_job_and_is_shown_at_its_line(workspace: Path) -> None:
    head = workspace / "head/train.py"
    head.write_text(head.read_text().replace('if more == "item":', "if True:"))
    job = run(workspace)
    assert job.exit_code == 3, job
    number = next(n for n, line in enumerate(head.read_text().splitlines(), 1) if "loss.item()" in line)
    assert f"::error file=train.py,line={number},title=dpdoctor gate::" in job.printed
    assert job.summary.startswith("### Regressed: ddp")
    assert ET.parse(job.outputs["junit"]).getroot().attrib["failures"] == "1"


def test_a_wrong_input_is_told(workspace: Path) -> None:
    job = run(workspace, exact="yes")
    assert (job.exit_code, job.printed) == (2, "::error::the input exact must be true or false\n")


def test_a_script_that_is_not_there_fails_without_a_summary(workspace: Path) -> None:
    job = run(workspace, script="nowhere.py")
    assert job.exit_code == 2
    assert job.summary == ""
