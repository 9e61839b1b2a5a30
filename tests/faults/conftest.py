"""Runs the real command on a real script, in processes of its own, and reads what it left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpdoctor import rundir
from dpdoctor.records import Launch, Rank, RankRecord

SCRIPTS = Path(__file__).parent / "scripts"
# Little, but enough for a proof and two windows.
SHORT = ("--warmup", "3", "--steps", "4", "--rounds", "2", "--trace-steps", "0", "--arms", "none")


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


def command(root: Path, script: str, options: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return the command line that profiles one of the scripts beside this file."""
    path = str(SCRIPTS / script)
    return [sys.executable, "-m", "dpdoctor", "profile", path, "--out", str(root), *options, "--", *args]


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Profiled]:
    """Return a function that profiles a script and returns what came of it."""

    def run(script: str, *options: str, args: Sequence[str] = ()) -> Profiled:
        root = tmp_path / "run"
        done = subprocess.run(
            command(root, script, options, args), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return Profiled(exit_code=done.returncode, output=done.stdout + done.stderr, root=root)

    return run
