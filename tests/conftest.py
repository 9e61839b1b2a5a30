"""Rules for every test: the surroundings stay as they were, property tests repeat exactly, who measures may retry."""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.commands import GROUP, SERVERS_VARIABLE

# Where the last result of each slow test is kept, for all to see; a run of .ci/run takes one slice of them.
LAST_RESULTS = Path(__file__).parent / "slow_results.json"
SLICES = 40
# A file with tests that run alone says so: of any other, which takes its time to be imported, they are not asked for.
RUN_ALONE = re.compile(r"\bmark\.(measured|slow)\b|\bin_turn\(")
OF_GPU = Path(__file__).resolve().parent / "gpu"
_ended: dict[str, dict[str, object]] = {}

# No deadline: how fast an example runs says nothing. No database: the same examples on every machine.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def same_surroundings() -> Iterator[None]:
    """Put the environment, the working directory, sys.path and sys.argv back after each test."""
    environ, cwd, path, argv = dict(os.environ), Path.cwd(), list(sys.path), list(sys.argv)
    yield
    os.chdir(cwd)
    sys.path[:], sys.argv[:] = path, argv
    if dict(os.environ) != environ:
        os.environ.clear()
        os.environ.update(environ)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what .ci/run and whoever runs the long tests need."""
    parser.addoption("--slice", metavar="COMMIT", help=f"one of {SLICES} slices of the slow tests, by a commit's hash")
    parser.addoption("--keep-results", action="store_true", help=f"note results of slow tests in {LAST_RESULTS.name}")


def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes `-n auto` and `-n logical` are: many tests only wait for processes of their own."""
    return max(2, 3 * (os.cpu_count() or 1) // 2)


class ByFile(LoadScopeScheduling):
    """Give a test process whole files, whose tests share what is costly to build.

    Tests that launch go one by one, those of a group, which share launches, together.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition(GROUP if nodeid.startswith(("tests/faults/", "tests/gpu/")) else "::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Return who hands the tests to the processes of pytest-xdist."""
    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """Keep all that was imported out of what the collector looks through, which many tests ask for."""
    gc.enable()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Name the directory of the servers that fork for tests; the processes of pytest-xdist inherit it.

    They also inherit that there is no GPU: only tests/gpu, which runs alone, is about what a machine has.
    """
    gc.disable()  # nothing of what is imported is garbage
    asked = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if not any(path.resolve().is_relative_to(OF_GPU) for path in asked):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if SERVERS_VARIABLE not in os.environ:
        os.environ[SERVERS_VARIABLE] = tempfile.mkdtemp(prefix="dpdoctor-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SERVERS_VARIABLE), ignore_errors=True)


@functools.cache
def runs_alone(path: Path) -> bool:
    """Return whether a file holds tests that measure or are slow."""
    return RUN_ALONE.search(path.read_text("utf-8")) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files without a test that runs alone, where nothing else was asked for; None: pytest decides."""
    is_test = collection_path.name.startswith("test_") and collection_path.is_file()
    return True if config.getoption("--slice") and is_test and not runs_alone(collection_path) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests that measure try again, and of the slow ones keep a slice where only that was asked for."""
    for item in items:
        if item.get_closest_marker("measured"):
            # Other users of a shared machine plant delays of their own.
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"]))
    for item in items:
        is_alone = item.get_closest_marker("measured") or item.get_closest_marker("slow")
        if is_alone and not runs_alone(item.path):
            raise pytest.UsageError(f"{item.path} has no {RUN_ALONE.pattern}, and so --slice would pass it over")
    commit = config.getoption("--slice")
    if commit:
        slow = [item for item in items if item.get_closest_marker("slow")]
        turn = int(commit, 16) % SLICES
        # Neighbours share what they launch.
        left_out = slow[: len(slow) * turn // SLICES] + slow[len(slow) * (turn + 1) // SLICES :]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember how slow tests ended."""
    if report.when == "call" and "slow" in report.keywords and report.outcome != "rerun":
        _ended[report.nodeid] = {"result": report.outcome, "seconds": round(report.duration)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note how slow tests ended, and at which commit."""
    if _ended and session.config.getoption("--keep-results"):
        describe = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
        commit = subprocess.run(describe, cwd=LAST_RESULTS.parent, capture_output=True, text=True, check=True)
        when = {"commit": commit.stdout.strip(), "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"}
        known = json.loads(LAST_RESULTS.read_text()) if LAST_RESULTS.exists() else {}
        known |= {name: {**when, **result} for name, result in _ended.items()}
        LAST_RESULTS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
