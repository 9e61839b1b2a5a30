"""Ending ends processes, so each case is one: a few lines that know nothing of torch, but for the last case."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
    from dpdoctor.worker import ending
    ending.GRACE_S = {grace}
    end = ending.Ending(lambda *told: print("finish", *told), lambda: {forced})

    def swallow(action, *args):
        try:
            action(*args)
        except ending.Stop as stop:
            print("stop", stop)
"""


def run(
    script: str, *, grace: float = 60.0, forced: str = 'print("forced")', stdout: int | None = subprocess.PIPE
) -> tuple[int, list[str]]:
    """Return the exit code and the lines printed."""
    text = textwrap.dedent(BEGIN.format(grace=grace, forced=forced)) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", text], stdout=stdout, check=False, timeout=60)
    return done.returncode, (done.stdout or b"").decode().splitlines()


def test_nothing_happens_before_the_end() -> None:
    assert run("end.check(); print(end.begun, end.status)") == (0, ["False None"])


def test_stop_finishes_once_and_unwinds() -> None:
    script = """
        swallow(end.stop, "ok")
        swallow(end.stop, "failed", "too late")
        print(end.begun, end.status, end.reason)
    """
    said = "stop dpdoctor has recorded enough"
    assert run(script) == (0, ["finish ok None", said, said, "True ok None"])


def test_a_script_that_catches_exceptions_only_is_unwound() -> None:
    script = """
        try:
            end.stop("failed", "planted")
        except Exception:
            print("caught")
    """
    code, printed = run(script)
    assert (code, printed) == (1, ["finish failed planted"])


def test_a_script_that_goes_on_is_stopped_again_and_then_ended() -> None:
    script = """
        swallow(end.stop, "ok")
        for _ in range(10):
            swallow(end.check)
        print("never reached")
    """
    said = "stop dpdoctor has recorded enough"
    assert run(script) == (0, ["finish ok None", said, said, said, "forced"])


def test_a_failed_script_that_must_be_forced_exits_with_1() -> None:
    script = """
        swallow(end.stop, "failed", "planted")
        for _ in range(10):
            swallow(end.check)
    """
    code, printed = run(script)
    assert code == 1
    assert printed == ["finish failed planted", "stop planted", "stop planted", "stop planted", "forced"]


def test_a_script_that_never_asks_again_is_ended_after_the_grace() -> None:
    script = """
        import threading
        swallow(end.stop, "ok")
        threading.Event().wait(30)
        print("never reached")
    """
    assert run(script, grace=0.05) == (0, ["finish ok None", "stop dpdoctor has recorded enough", "forced"])


def test_a_script_that_unwinds_in_time_is_not_forced() -> None:
    assert run('swallow(end.stop, "ok"); print("cleaned up")')[1][-1] == "cleaned up"


@pytest.mark.parametrize("forced", ["1 / 0", "sys.stdout.close()"])
def test_the_process_ends_whatever_goes_wrong_on_the_way(forced: str) -> None:
    script = """
        import sys, threading
        swallow(end.stop, "ok")
        threading.Event().wait(30)
        print("never reached")
    """
    code, printed = run(script, grace=0.05, forced=forced)
    assert code == 0
    assert printed[0] == "finish ok None"
    assert "never reached" not in printed


def test_a_record_that_cannot_be_completed_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    script = """
        def full(*told):
            raise OSError("No space left on device")

        end = ending.Ending(full, lambda: None)
        try:
            end.stop("ok")
        except OSError:
            print(end.status)
    """
    assert run(script) == (0, ["failed"])
    told = capfd.readouterr().err
    assert "Traceback" in told
    assert "OSError: No space left on device" in told


def test_a_script_that_was_started_by_somebody_else_leaves_with_success() -> None:
    script = """
        end.raising = ending.Leave
        import atexit
        atexit.register(print, "at exit")
        try:
            end.stop("ok")
        finally:
            print("unwound")
    """
    assert run(script) == (0, ["finish ok None", "unwound", "at exit"])


def test_a_script_that_is_to_go_on_is_told_nothing() -> None:
    script = """
        end = ending.LettingGo(lambda *told: print("finish", *told), lambda: print("forced"))
        swallow(end.stop, "ok")
        end.check()
        print("goes on", end.status)
    """
    assert run(script, grace=0.0) == (0, ["finish ok None", "stop ", "goes on ok"])


# What is collected at the very end says so, unless the process left before.
LEAVES = """
    from dpdoctor.worker.ending import LEAVING
    import atexit, os, sys, threading, time

    class Collected:
        def __del__(self, write=os.write):
            write(1, b"collected\\n")

    kept = Collected()
"""


def leave(script: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines printed."""
    text = textwrap.dedent(LEAVES) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, check=False, timeout=60, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("code", [0, 1])
def test_nothing_is_collected_and_what_was_printed_is_there(code: int) -> None:
    assert leave(f"LEAVING.with_code({code}); print('printed'); sys.exit({code})") == (code, ["printed"])


def test_without_a_code_python_ends_as_ever() -> None:
    assert leave("print('printed', flush=True); sys.exit(3)") == (3, ["printed", "collected"])


def test_threads_and_what_runs_at_exit_come_before() -> None:
    script = """
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        LEAVING.with_code(0)
    """
    assert leave(script) == (0, ["thread", "at exit"])


def test_a_process_that_was_forked_leaves_on_its_own() -> None:
    script = """
        LEAVING.with_code(0)
        child = os.fork()
        if child == 0:
            sys.exit(5)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert leave(script) == (0, ["collected", "child 5"])


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
    assert leave(script) == (0, ["{False}", "finalized"])
