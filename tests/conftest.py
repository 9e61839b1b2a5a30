"""Rules for every test: the surroundings stay as they were, property tests repeat exactly, who measures may retry."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.commands import SERVERS_VARIABLE

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


def pytest_configure() -> None:
    """Name the directory of the servers that fork for tests; the processes of pytest-xdist inherit it."""
    if SERVERS_VARIABLE not in os.environ:
        os.environ[SERVERS_VARIABLE] = tempfile.mkdtemp(prefix="dpdoctor-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SERVERS_VARIABLE), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that measure try again: other users of a shared machine plant delays of their own."""
    for item in items:
        if item.get_closest_marker("measured"):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"]))
