"""Runs `dpdoctor` as people do, for tests: in new processes or, quicker, in processes that a server forked.

What a forked rank has in common with a new one is tested, fact by fact, in tests/faults/test_forked_ranks.py. A step of
one takes as long as one of a new process (tests/benchmarks/forked_launches.py). Tests about processes that die take new
ones, and so do the live benchmarks and the walk of docs/ci.md: they are what people run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dpdoctor import rules
from dpdoctor.launch import forkserver
from dpdoctor.report import views
from tests.builders import plugins

# Set for the whole run of pytest: where its servers are.
SERVERS_VARIABLE = "DPDOCTOR_TEST_SERVERS"
# Ends, in a test's id, the name of the group of tests with which it shares launches.
GROUP = " @ "
# What most verbs import before they end.
PRELOAD = (
    "scipy.stats",
    "rich._emoji_codes",
    "dpdoctor.cli.profile",
    "dpdoctor.cli.report",
    "dpdoctor.cli.gate",
    "dpdoctor.gate.calibration",
    "dpdoctor.report.page",
    "dpdoctor.report.formats.terminal",
    "dpdoctor.report.traces.timeline",
    *(f"{package.__name__}.{name}" for package in (rules, views) for name in plugins.names(package)),
)


def forking(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which dpdoctor forks its ranks."""
    return {**environment, forkserver.DIRECTORY_VARIABLE: os.environ[SERVERS_VARIABLE]}


def heed_ctrl_c() -> None:
    """Let the process that calls this be ended by Ctrl-C: what a shell starts in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def dpdoctor(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None, new_processes: bool = False
) -> subprocess.CompletedProcess[str]:
    """Return the finished command, with what it printed."""
    environment = dict(os.environ if environment is None else environment)
    if new_processes:
        return subprocess.run(
            [sys.executable, "-m", "dpdoctor", *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    request = forkserver.Request(module="dpdoctor", arguments=arguments, cwd=str(cwd), environment=forking(environment))
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = forkserver.start(os.environ[SERVERS_VARIABLE], request, preload=PRELOAD, stdout=stdout, stderr=stderr)
        if process is None:  # the request is too large, or the server has just ended
            return dpdoctor(*arguments, cwd=cwd, environment=request.environment, new_processes=True)
        code = process.wait()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read().decode(), stderr.read().decode())
