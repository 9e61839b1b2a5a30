"""Runs the real command on a real script, in processes of its own, and reads what it left."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpdoctor import rundir
from dpdoctor.launch.native import NO_WALL_TEXT
from dpdoctor.records import Launch, Rank, RankRecord
from tests.commands import dpdoctor

# A case beside others of its kind, which takes its turn with the slow tests.
in_turn = partial(pytest.param, marks=pytest.mark.slow)
SCRIPTS = Path(__file__).parent / "scripts"
# Little, but enough for a proof and two windows; two ranks, and as many threads for each in every mode, on any machine.
LITTLE = ("--warmup", "3", "--steps", "4", "--rounds", "2", "--trace-steps", "0")
SHORT = ("--nproc", "2", *LITTLE, "--ablations", "none", "--no-control")
# Two ranks of a script that distributes itself, where it does not matter who starts them: half the work of torchrun's.
TWO_FORKED = ("--launcher", shlex.join([sys.executable, str(SCRIPTS / "native_forked.py"), "2"]))
# How the reason begins where no kernel's wall can stand around a script that distributes itself.
NO_WALL = NO_WALL_TEXT.partition("(")[0]

# Whose ranks no server can fork: a launcher of the script's own starts them, or a new process is what is tested.
NEW_PROCESSES = frozenset(
    f"test_{name}.py" for name in ("action", "forked_ranks", "native", "native_ablations", "native_gate", "own_cost")
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the fast suite leaves out."""
    for item in items:
        if item.path.parent == SCRIPTS.parent and item.path.name in NEW_PROCESSES:
            item.add_marker("new_processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One finished `dpdoctor profile`."""

    exit_code: int
    output: str
    root: Path

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.root / rundir.SUMMARY).read_text())

    def mode(self, name: str) -> dict[str, Any]:
        return self.summary["modes"][name]

    def launch(self, mode: str) -> Launch:
        return rundir.read(self.root).modes[mode][0]

    def rank(self, mode: str, rank: int = 0) -> Rank:
        return self.launch(mode).ranks[rank]

    def record(self, mode: str, rank: int = 0) -> RankRecord:
        record = self.rank(mode, rank).record
        assert record is not None
        return record

    def printed(self, mode: str, rank: int = 0) -> str:
        return (self.root / mode / f"rank{rank}" / rundir.STDOUT).read_text()


def arguments(root: Path, script: str, options: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return what follows `dpdoctor` to profile one of the scripts beside this file."""
    return ["profile", str(SCRIPTS / script), "--out", str(root), *options, "--", *args]


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Profiled]:
    """Return a function that profiles a script and returns what came of it."""

    def run(
        script: str,
        *options: str,
        args: Sequence[str] = (),
        new_processes: bool = False,
        control: bool = False,
        cwd: Path = tmp_path,
    ) -> Profiled:
        root = tmp_path / "run"
        options = options if control else ("--no-control", *options)
        done = dpdoctor(*arguments(root, script, options, args), cwd=cwd, new_processes=new_processes)
        return Profiled(exit_code=done.returncode, output=done.stdout + done.stderr, root=root)

    return run
