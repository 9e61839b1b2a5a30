"""`python -m dpdoctor`, as people start it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from dpdoctor import __main__, cli


def test_it_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "dpdoctor", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("dpdoctor, version ")


def test_garbage_is_still_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = gc.get_threshold(), []
    monkeypatch.setattr(__main__.atexit, "register", lambda _: None)
    monkeypatch.setattr(cli, "main", lambda **_: seen.append((gc.isenabled(), gc.get_threshold()[0])))
    try:
        __main__.run()
    finally:
        gc.set_threshold(*before)
    assert seen == [(True, __main__.ALLOCATIONS)]
