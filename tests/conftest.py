"""Rules for every test: the surroundings stay as they were, and property tests repeat exactly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

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
