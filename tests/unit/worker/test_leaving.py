"""Leaving ends processes, so each case is one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# What is collected at the very end says so, unless the process left before.
BEGIN = """
    from dpdoctor.worker.leaving import LEAVING
    import atexit, os, sys, threading, time

    class Collected:
        def __del__(self, write=os.write):
            write(1, b"collected\\n")

    kept = Collected()
"""


def run(script: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines printed."""
    text = textwrap.dedent(BEGIN) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, check=False, timeout=60, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("code", [0, 1])
def test_nothing_is_collected_and_what_was_printed_is_there(code: int) -> None:
    assert run(f"LEAVING.with_code({code}); print('printed'); sys.exit({code})") == (code, ["printed"])


def test_without_a_code_python_ends_as_ever() -> None:
    assert run("print('printed', flush=True); sys.exit(3)") == (3, ["printed", "collected"])


def test_threads_and_what_runs_at_exit_come_before() -> None:
    script = """
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        LEAVING.with_code(0)
    """
    assert run(script) == (0, ["thread", "at exit"])


def test_a_process_that_was_forked_leaves_on_its_own() -> None:
    script = """
        LEAVING.with_code(0)
        child = os.fork()
        if child == 0:
            sys.exit(5)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(script) == (0, ["collected", "child 5"])


def test_torch_takes_no_operator_back_and_what_the_script_wants_at_exit_is_done() -> None:
    script = """
        import torch, weakref

        class Owner:
            pass

        owner = Owner()
        finalizer = weakref.finalize(owner, print, "finalized")
        LEAVING.with_code(0)
        print({item.atexit for item in weakref.finalize._registry if item.peek()[1].__module__ == "torch.library"})
    """
    assert run(script) == (0, ["{False}", "finalized"])
