"""The walk of docs/ci.md from nothing to a gated pull request: every command of it does what it says."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.commands import forking
from tests.faults.gate_walk import commands, workflow

ROOT = Path(__file__).parents[2]
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with the samples on its branch main, and on a branch of its own that is checked out."""
    path = tmp_path / "checkout"
    shutil.copytree(ROOT / "samples", path / "samples", ignore=shutil.ignore_patterns("__pycache__"))
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "samples"], ["switch", "-qc", "change"]):
        subprocess.run([*GIT, *arguments], cwd=path, check=True)
    return path


def run(command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    homes = {name: str(cwd.parent / name) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    env = {**(environment or forking()), **homes, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def is_by_time(command: str) -> bool:
    """Return whether a command of the walk compares launches by how long they take: it launches dozens."""
    return command.startswith(("dpdoctor gate", "dpdoctor calibrate")) and "--exact" not in command


def first_by_time() -> int:
    """Return the place of the first command that compares launches by time; until there, launches may be disturbed."""
    return next(place for place, command in enumerate(commands()) if is_by_time(command))


def assert_each_succeeds(told: Sequence[str], checkout: Path) -> None:
    assert told
    for command in told:
        done = run(command, checkout)
        assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)


def test_every_command_of_the_walk_before_the_first_that_goes_by_time(checkout: Path) -> None:
    assert_each_succeeds(commands()[: first_by_time()], checkout)


@pytest.mark.measured  # a run that was disturbed becomes no baseline
def test_every_later_command_of_the_walk_that_does_not_go_by_time(checkout: Path) -> None:
    assert_each_succeeds([told for told in commands()[first_by_time() :] if not is_by_time(told)], checkout)


@pytest.mark.slow
@pytest.mark.measured
def test_every_command_of_the_walk(checkout: Path) -> None:
    for command in commands():
        done = run(command, checkout, os.environ)
        # 4: a noisy machine cannot be calibrated, and gates that need it cannot tell.
        allowed = {0, 4} if is_by_time(command) else {0}
        assert done.returncode in allowed, (command, done.returncode, done.stdout, done.stderr)


def test_the_workflow_gives_the_action_only_inputs_that_it_has() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (job,) = workflow()["jobs"].values()
    (given,) = (step["with"] for step in job["steps"] if "dpdoctor" in step.get("uses", ""))
    required = {name for name, declared in action["inputs"].items() if declared.get("required")}
    assert required <= {*given} <= {*action["inputs"]}


def test_the_workflow_compares_a_merge_with_the_commit_that_it_goes_into(tmp_path: Path) -> None:
    (job,) = workflow()["jobs"].values()
    (given,) = (step["with"] for step in job["steps"] if "dpdoctor" in step.get("uses", ""))
    (checkout,) = (step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/checkout"))
    (beside,) = (step["run"] for step in job["steps"] if "git" in step.get("run", ""))
    origin, head, base = (tmp_path / name for name in ("origin", given.get("head", "head"), given.get("base", "base")))
    assert head == tmp_path / checkout["path"]
    for made in (
        "git init -q origin",
        *(f"git -C origin {told}" for told in ("commit --allow-empty -qm first", "switch -qc change")),
        "git -C origin commit --allow-empty -qm change",
        "git -C origin switch -q main",
        "git -C origin commit --allow-empty -qm second",
        "git -C origin merge -q --no-ff --no-edit change",
        # What was merged meanwhile is no part of the change.
        "git -C origin branch merged",
        "git -C origin commit --allow-empty -qm later",
        f"git clone -q --depth {checkout['fetch-depth']} --branch merged {origin.as_uri()} {head.name}",
        beside,
    ):
        subprocess.run([*GIT, *shlex.split(made)[1:]], cwd=tmp_path, check=True)
    told = subprocess.run([*GIT, "log", "-1", "--format=%s"], cwd=base, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "second"
