from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.heartbeat import Beat, Heartbeat
from dpdoctor.launch import watch
from dpdoctor.launch.native import SeenRank
from dpdoctor.launch.processes import RankProcess
from dpdoctor.launch.watch import TAIL_BYTES, TAIL_LINES, Frame, Patience
from dpdoctor.records import RankRecord
from tests.builders.handclock import HandClock
from tests.unit.launch.conftest import Start, until
from tests.unit.launch.test_native import STACKS
from tests.unit.launch.test_native import rank as seen_rank

Ended = Callable[..., RankProcess]


def told(rank: RankProcess, status: str, reason: str | None = None, ending: str = "") -> None:
    """Write what a rank says of itself."""
    record = RankRecord(
        rank=rank.rank,
        world_size=2,
        pid=rank.pid,
        host="box",
        device="cpu",
        backend="gloo",
        status=status,
        reason=reason,
        ending=ending,
    )
    rundir.write_json(rank.directory / rundir.RANK, record)


def beat(rank: RankProcess, stage: str, step: int) -> None:
    heart = Heartbeat(rank.directory, rank.pid, lambda: 1)
    heart.enter(stage)
    heart.beat(step, 4 * step)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_patience_ends_when_a_sign_has_not_changed_for_too_long(story: list[tuple[int, int, int]]) -> None:
    clock, timeout = HandClock(), 5
    patience = Patience(timeout, clock)
    changed: dict[int, tuple[int, int]] = {}
    for wait, *signs in story:
        clock.tick(wait)
        for rank, sign in enumerate(signs):
            if rank not in changed or changed[rank][0] != sign:
                changed[rank] = (sign, clock.now)
        expected = [rank for rank in range(2) if clock.now - changed[rank][1] > timeout]
        assert patience.exhausted_by(dict(enumerate(signs))) == expected


def test_patience_forgets_nothing_about_a_rank_that_is_not_asked_about() -> None:
    clock = HandClock()
    patience = Patience(5, clock)
    patience.exhausted_by({0: "sign", 1: "sign"})
    clock.tick(6)
    assert patience.exhausted_by({1: "sign"}) == [1]
    assert patience.exhausted_by({0: "sign", 1: "other"}) == [0]


def told_beat(step: int, stage: str = "measure") -> Beat:
    return Beat(pid=1, stage=stage, step=step, samples=0, window=0, at_ns=step)


def test_once_steps_began_a_step_is_progress_and_a_line_is_not() -> None:
    clock = HandClock()
    hope, lines = watch.Hope(10, clock), iter(range(100))

    def lost(step: int) -> list[int]:
        clock.tick(4)
        return hope.lost_in({0: told_beat(step)}, lambda _: next(lines))

    assert [lost(step) for step in (1, 2, 3, 3, 3, 3)] == [[], [], [], [], [], [0]]


def test_what_prints_before_its_first_step_has_half_as_much_time_again() -> None:
    clock = HandClock()
    hope, printed = watch.Hope(10, clock), [0, 0]

    def lost() -> list[int]:
        clock.tick(4)
        printed[0] += 1
        return hope.lost_in({0: told_beat(0, "script"), 1: told_beat(0, "script")}, lambda rank: printed[rank])

    assert [lost() for _ in range(5)] == [[], [], [], [1], [0, 1]]


def test_a_new_stage_before_the_first_step_gives_no_more_time_to_prepare() -> None:
    clock = HandClock()
    hope, stages = watch.Hope(10, clock), iter([None, *(told_beat(0, f"stage {i}") for i in range(9))])

    def lost() -> list[int]:
        clock.tick(4)
        return hope.lost_in({0: next(stages)}, lambda _: 0)

    assert [lost() for _ in range(5)] == [[], [], [], [], [0]]


def test_the_tail_is_the_last_lines_without_the_profilers_own(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    noise = ["USDT:2026 profiler_start", "ERROR:2026 DeviceProperties.cpp:56] gpuGetDeviceCount failed", "", "  "]
    noise.append("[rank1]:[W1123 19:35:04.036 CPUAllocator.cpp:245] Memory block of unknown size was allocated before")
    log.write_text("\n".join(line for i in range(30) for line in (f"line {i}", *noise)))
    assert watch.tail(log) == tuple(f"line {i}" for i in range(30 - TAIL_LINES, 30))
    assert watch.tail(log, 2) == ("line 28", "line 29")


def test_the_tail_of_a_long_log_has_whole_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(b"x" * TAIL_BYTES + b"\n" + b"y" * (TAIL_BYTES - 100) + b"\nlast \xff line\n")
    assert watch.tail(log) == ("y" * (TAIL_BYTES - 100), "last � line")
    log.write_bytes(b"x" * 2 * TAIL_BYTES + b"\nlast line")
    assert watch.tail(log) == ("last line",)


def test_of_a_progress_bar_the_tail_has_the_last_state(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(b"begin\r\n" + b"".join(b"\r %d%%" % i for i in range(100)) + b"\r\nend\n" + b"\r 3 of 4\r")
    assert watch.tail(log) == ("begin", " 99%", "end", " 3 of 4")


def test_there_is_no_tail_without_a_log(tmp_path: Path) -> None:
    assert watch.tail(tmp_path / "absent") == ()
    (tmp_path / "empty").touch()
    assert watch.tail(tmp_path / "empty") == ()


def test_a_rank_has_failed_when_it_ended_without_a_good_record(ended: Ended, start: Start) -> None:
    running, good, silent = start(), ended(), ended()
    told(good, "ok")
    assert [watch.has_failed(rank) for rank in (running, good, silent)] == [False, False, True]
    for status in ("running", "failed", "interrupted"):
        told(good, status)
        assert watch.has_failed(good)
    (good.directory / rundir.RANK).write_text("{")
    assert watch.has_failed(good)


def test_all_good_is_ok(ended: Ended) -> None:
    ranks = [ended(), ended()]
    for rank in ranks:
        told(rank, "ok")
    assert watch.outcome_of(ranks) == watch.LaunchOutcome(status="ok")


def test_the_first_rank_to_fail_is_to_blame(ended: Ended) -> None:
    first, second = ended("import sys; print('oh no', file=sys.stderr); sys.exit(1)", rank=1), ended(rank=0)
    told(second, "failed", "connection closed by peer")
    said = "the script raised ValueError: planted"
    told(first, "failed", said)
    os.utime(first.directory / rundir.RANK, ns=(0, 0))
    outcome = watch.outcome_of([second, first])
    assert (outcome.status, outcome.failed_rank) == ("failed", 1)
    assert outcome.reason == f"rank 1: {said}"
    assert outcome.stderr_tail == ("oh no",)


def test_a_rank_that_printed_no_error_is_told_by_what_it_printed(ended: Ended) -> None:
    rank = ended("print('needs 2 GPUs, found 0')")
    told(rank, "failed", "the script ended without a training step", "returned")
    assert watch.outcome_of([rank]).stderr_tail == ("needs 2 GPUs, found 0",)


def test_of_a_line_that_tells_of_a_refusal_what_stands_around_it_is_told(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AROUND", 14)
    printed = "x" * 90 + " hf_abcdefghijklmnopqrstuvwxyzABCDEFGH m.csv: Permission denied " + "y" * 90
    rank = ended("exit 0")
    told(rank, "ok")
    record = watch.record_of(rank)
    assert record is not None
    rundir.write_json(rank.directory / rundir.RANK, replace(record, protected_by="landlock"))
    (rank.directory / rundir.STDOUT).write_text(f"{printed}\nshort: permission denied\n")
    (long, short) = watch.refusals([rank])
    assert short == "short: permission denied"
    assert long.endswith(" m.csv: Permission denied yyyyyyyyyyyyy\N{HORIZONTAL ELLIPSIS}")
    assert long.startswith("\N{HORIZONTAL ELLIPSIS}")
    assert "DEFGH" not in long, "a half of a secret is one, too"


def test_a_rank_that_dpdoctor_refused_has_its_reason_and_no_unrelated_lines(ended: Ended) -> None:
    rank = ended("import sys; print('UserWarning: of the script', file=sys.stderr); sys.exit(1)")
    for ending, tail in (("raised", ("UserWarning: of the script",)), ("stopped", ())):
        told(rank, "failed", "gradients were not synchronised", ending)
        assert watch.outcome_of([rank]).stderr_tail == tail


def test_a_rank_that_was_killed_is_to_blame_for_what_its_peers_say(ended: Ended) -> None:
    killed, peer = ended("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), ended()
    told(peer, "failed", "connection closed by peer")
    told(killed, "running")
    beat(killed, "measure", 1234)
    outcome = watch.outcome_of([peer, killed])
    assert outcome.failed_rank == 0
    assert outcome.reason is not None
    assert outcome.reason.startswith("rank 0: ")
    assert "killed by SIGKILL" in outcome.reason
    assert watch.where(killed) in outcome.reason


@pytest.mark.parametrize(
    ("printed", "end"), [("Received data size doesn't match expected size.", watch.SENT_MORE), ("", "")]
)
def test_a_rank_that_was_sent_more_than_it_waited_for_is_told_why(ended: Ended, printed: str, end: str) -> None:
    rank = ended(f"import os, sys; print({printed!r}, file=sys.stderr, flush=True); os.abort()")
    assert watch.outcome_of([rank]).reason == f"the process was killed by SIGABRT {watch.where(rank)}{end}"


def test_a_rank_that_we_ended_is_not_to_blame(ended: Ended) -> None:
    ours = ended("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    ours.ended_by_us = True
    culprit = ended("raise SystemExit(3)")
    outcome = watch.outcome_of([ours, culprit])
    assert outcome.failed_rank == 1
    assert outcome.reason is not None
    assert outcome.reason.startswith("rank 1: ")
    assert "exit code 3" in outcome.reason
    assert watch.where(culprit) in outcome.reason


def test_when_all_say_the_same_the_script_failed_and_not_a_rank(ended: Ended) -> None:
    ranks = [ended(), ended()]
    for rank in ranks:
        told(rank, "failed", "the script raised ValueError: planted")
    assert watch.outcome_of(ranks).reason == "the script raised ValueError: planted"


def test_a_rank_whose_script_ended_is_named_where_another_waited_for_it(ended: Ended) -> None:
    returned, waited = ended(), ended("raise SystemExit(1)")
    told(returned, "ok", ending="returned")
    beat(returned, "done", 321)
    told(waited, "failed", "the other ranks did not come to the end of this window: Connection reset", "stopped")
    outcome = watch.outcome_of([waited, returned])
    assert outcome.failed_rank == waited.rank
    assert outcome.reason is not None
    assert outcome.reason.startswith(f"the script of rank {returned.rank} ended after 321 steps")
    assert f"rank {waited.rank} trained on" in outcome.reason


def test_what_a_script_raises_is_told_although_another_ended_well(ended: Ended) -> None:
    returned, raised = ended(), ended("raise SystemExit(1)")
    told(returned, "ok", ending="returned")
    told(raised, "failed", "the script raised ValueError: planted", "raised")
    assert "planted" in str(watch.outcome_of([raised, returned]).reason)


def test_alone_no_rank_is_named(ended: Ended) -> None:
    rank = ended()
    beat(rank, "script", 0)
    reason = watch.outcome_of([rank]).reason
    assert reason is not None
    assert "exit code 0" in reason
    assert watch.where(rank) in reason
    assert "rank" not in reason


HANGING = """
import faulthandler, signal, sys, threading
faulthandler.register(signal.SIGUSR1, file=open({stacks!r}, "w"), all_threads=True)

def wait_for_nothing():
    threading.Event().wait(60)

threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
exec(compile("def stand(action): print('here', flush=True); action()", {file!r}, "exec"))
{call}
"""


def hanging(start: Start, tmp_path: Path, file: str, call: str = "stand(signal.pause)") -> RankProcess:
    """Start a rank that stands in a file of that name, and have its stacks written."""
    number = len(list(tmp_path.glob("rank*")))
    stacks = tmp_path / f"rank{number}" / rundir.STACKS
    rank = start(HANGING.format(stacks=str(stacks), file=file, call=call))
    until(lambda: (rank.directory / rundir.STDOUT).read_text() == "here\n")
    rank.send(signal.SIGUSR1)
    until(lambda: stacks.exists() and "<module>" in stacks.read_text())
    return rank


TORCH = next(iter(importlib.util.find_spec("torch").submodule_search_locations))  # type: ignore[union-attr,arg-type]
OWN = str(Path(watch.__file__).parents[1])


@pytest.mark.parametrize("theirs", [f"{TORCH}/distributed/distributed_c10d.py", f"{OWN}/worker/base/agreement.py"])
@pytest.mark.parametrize("users", ["/home/me/torch/train.py", "/home/me/dpdoctor/train.py", f"{OWN}-examples/train.py"])
def test_the_rank_that_stands_outside_of_torch_is_to_blame(
    start: Start, tmp_path: Path, theirs: str, users: str
) -> None:
    waiting, stuck = hanging(start, tmp_path, theirs), hanging(start, tmp_path, users)
    for rank in (waiting, stuck):
        beat(rank, "measure", 10)
    outcome = watch.outcome_of_hang([waiting, stuck], [0, 1], 8.0)
    assert outcome.failed_rank == 1
    assert outcome.reason is not None
    assert outcome.reason.startswith("rank 1 ")
    facts = ("8.00 s", watch.where(stuck), f"{users}:1 in stand", "--timeout")
    assert all(fact in outcome.reason for fact in facts)


def test_a_rank_whose_optimizer_takes_no_step_is_told_so(start: Start, tmp_path: Path) -> None:
    stuck = hanging(start, tmp_path, "/home/me/train.py")
    heart = Heartbeat(stuck.directory, 1, time.monotonic_ns)
    for _ in range(watch.MANY_PASSES):
        heart.backward_ended()
    outcome = watch.outcome_of_hang([stuck], [0], 8.0)
    assert f"{watch.NO_UPDATE.format('10 backward passes')} {watch.MORE_TIME}" in str(outcome.reason)


def test_one_that_prints_before_its_first_step_is_to_blame_where_another_waits_for_it(
    start: Start, tmp_path: Path
) -> None:
    sleeping = "import functools, time; stand(functools.partial(time.sleep, 60))"
    waiting = hanging(start, tmp_path, f"{TORCH}/distributed/c10d.py", sleeping)
    printing = hanging(start, tmp_path, "/home/me/train.py", sleeping)
    outcome = watch.outcome_of_hang([waiting, printing], [0], 300.0)
    assert outcome.failed_rank == 1
    assert watch.PRINTING in str(outcome.reason)


def test_who_stands_in_a_library_is_told_by_the_line_that_called_it(start: Start, tmp_path: Path) -> None:
    train = "exec(compile('def train(): stand(signal.pause)', '/home/me/train.py', 'exec')); train()"
    rank = hanging(start, tmp_path, f"{TORCH}/nn/module.py", train)
    reason = str(watch.outcome_of_hang([rank], [0], 8.0).reason)
    assert "/home/me/train.py:1 in train" in reason
    assert TORCH not in reason


def test_of_ranks_that_all_wait_the_one_furthest_back_is_to_blame(start: Start, tmp_path: Path) -> None:
    ranks = [hanging(start, tmp_path, f"{TORCH}/nn/module.py") for _ in range(2)]
    beat(ranks[0], "measure", 11)
    beat(ranks[1], "measure", 10)
    assert watch.outcome_of_hang(ranks, [0, 1], 8.0).failed_rank == 1
    assert watch.outcome_of_hang(ranks, [0], 8.0).failed_rank == 0


SLEEP = "import functools, time; sleep = functools.partial(time.sleep, 60); "
GATHER = f"exec(compile('def gather(): stand(sleep)', '{TORCH}/distributed/fsdp/x.py', 'exec')); gather()"


@pytest.mark.parametrize(
    ("file", "call", "said"),
    [
        ("distributed/distributed_c10d.py", "stand(sleep)", watch.EQUALLY),
        ("nn/parallel/distributed.py", "stand(sleep)", watch.EQUALLY),
        ("distributed/distributed_c10d.py", GATHER, f"{watch.EQUALLY} {watch.CALLED_EQUALLY}"),
    ],
)
def test_where_all_ranks_exchange_more_time_is_not_advised(
    start: Start, tmp_path: Path, file: str, call: str, said: str
) -> None:
    ranks = [hanging(start, tmp_path, f"{TORCH}/{file}", f"{SLEEP}{call}") for _ in range(2)]
    assert str(watch.outcome_of_hang(ranks, [0], 8.0).reason).endswith(f". {said}")
    ranks.append(hanging(start, tmp_path, f"{TORCH}/nn/functional.py", f"{SLEEP}stand(sleep)"))  # it may be only slow
    assert watch.MORE_TIME in str(watch.outcome_of_hang(ranks, [0], 8.0).reason)


@pytest.mark.parametrize(("steps", "said"), [(0, f"{watch.MORE_TIME}{watch.NO_STEPS}"), (1, f". {watch.MORE_TIME}")])
def test_a_script_without_a_first_step_may_be_one_that_never_takes_any(start: Start, steps: int, said: str) -> None:
    rank = start()
    beat(rank, "script", steps)
    assert str(watch.outcome_of_hang([rank], [0], 300.0).reason).endswith(said)


def test_alone_it_is_the_script_that_hangs(start: Start) -> None:
    rank = start()
    reason = watch.outcome_of_hang([rank], [0], 300.0).reason
    assert reason is not None
    assert all(fact in reason for fact in ("the script", "5.00 min", watch.where(rank), "--timeout"))
    assert "rank" not in reason


@pytest.mark.parametrize(
    ("stage", "step", "said"),
    [
        (None, 0, "before it began (see its stderr.log)"),
        ("script", 0, "in stage script, before its first step"),
        ("trace", 1, "in stage trace, after 1 step"),
    ],
)
def test_where_a_rank_is_in_words(ended: Ended, stage: Any, step: int, said: str) -> None:
    rank = ended()
    if stage:
        beat(rank, stage, step)
    assert watch.where(rank) == said


GONE = 2**22 - 1  # above what the kernel gives by default
RESET = "the script raised RuntimeError: Read error [127.0.0.1]:4262: Connection reset by peer (/me/train.py:29)"
RAISED = {"status": "failed", "ending": "raised"}


def gone(directory: Path, number: int, *, stack: str = "", at: int = 0, **said: object) -> SeenRank:
    """Return a rank whose process is gone after 14 steps, with the stack that it left at a time."""
    found = seen_rank(directory, number, steps=14, pid=GONE, **(said or {"status": "running"}))
    for name, text in ((rundir.STACKS, stack), (rundir.RANK, "")):
        path = found.directory / name
        if text:
            path.write_text(text)
        if path.exists():
            os.utime(path, ns=(at, at))
    return found


def test_a_rank_that_aborted_comes_before_a_peer_that_lost_its_connection(tmp_path: Path) -> None:
    ranks = [
        gone(tmp_path, 0, at=1, reason=RESET, **RAISED),
        gone(tmp_path, 1, at=2, stack=f"Fatal Python error: Aborted\n\n{STACKS}"),
    ]
    assert [end.rank for end in watch.ends_of_failed(ranks)] == [1, 0]
    told = watch.told_ends(watch.ends_of_failed(ranks))
    assert told.startswith(
        "rank 1, after 14 steps: its process died (Aborted) at /home/me/train.py:9; rank 0, after 14"
    )
    assert f"{watch.LOST} at /me/train.py:29" in told
    assert told.endswith(watch.EQUALLY)  # they stood at different lines


def test_a_rank_that_raised_comes_before_those_that_were_ended_for_it(tmp_path: Path) -> None:
    ranks = [
        gone(tmp_path, 0, at=2, stack=STACKS),
        gone(tmp_path, 1, at=1, reason="the script raised ValueError: no (/me/train.py:3)", **RAISED),
    ]
    told = watch.told_ends(watch.ends_of_failed(ranks))
    assert told.startswith("rank 1, after 14 steps: the script raised ValueError: no (/me/train.py:3); rank 0")
    assert "was ended by SIGTERM at /home/me/train.py:9" in told
    assert watch.EQUALLY not in told


def test_a_rank_that_was_ended_while_it_left_did_not_begin_it(tmp_path: Path) -> None:
    ranks = [
        gone(tmp_path, 0, stack=STACKS.splitlines()[0], at=1),
        gone(tmp_path, 1, stack="Fatal Python error: Aborted", at=2),
    ]
    assert [end.rank for end in watch.ends_of_failed(ranks)] == [1, 0]


def test_a_rank_that_was_killed_comes_first_and_all_that_were_ended_are_named(tmp_path: Path) -> None:
    ranks = [gone(tmp_path, 0, at=1, reason=RESET, **RAISED), gone(tmp_path, 1), gone(tmp_path, 2, stack=STACKS, at=3)]
    found = watch.ends_of_failed(ranks)
    assert [end.rank for end in found] == [1, 0, 2]
    assert "was killed" in found[0].words
    told = watch.told_ends(found)
    assert all(f"rank {number}, after 14 steps" in told for number in range(3))


def test_ranks_that_say_the_same_are_told_of_once(tmp_path: Path) -> None:
    same = {"reason": "the script raised ValueError: no (/me/train.py:3)", **RAISED}
    ranks = [gone(tmp_path, number, at=number, **same) for number in range(9)]
    assert watch.told_ends(watch.ends_of_failed(ranks)) == f"rank 0, after 14 steps: {same['reason']}"
    others = [gone(tmp_path, 9 + n, at=20, reason=f"other {n}", **RAISED) for n in range(6)]
    assert watch.told_ends(watch.ends_of_failed([ranks[0], *others])).endswith(
        "rank 11, after 14 steps: other 2; and 3 more"
    )


def test_a_script_that_ended_while_another_rank_went_on_is_named(tmp_path: Path) -> None:
    ended = gone(tmp_path, 1, status="failed", reason="too short", ending="returned")
    lost = gone(tmp_path, 0, reason=RESET, **RAISED)
    told = watch.ended_apart([lost, ended])
    assert told.startswith("the script of rank 1 ended after 14 steps, while that of rank 0 trained on")
    assert told.endswith(f"Rank 0, after 14 steps: {watch.LOST} at /me/train.py:29")
    assert watch.ended_apart([lost]) == ""


def test_a_rank_that_raised_for_a_reason_of_its_own_did_not_wait_for_one_that_ended(tmp_path: Path) -> None:
    ended = gone(tmp_path, 1, status="ok", ending="returned")
    raised = gone(tmp_path, 0, reason="the script raised ValueError: no (/me/train.py:3)", **RAISED)
    assert watch.ended_apart([raised, ended]) == ""


@pytest.mark.parametrize(
    "said",
    [
        "[pair.cc:561] Connection closed by peer [127.0.0.1]:13703",
        "[pair.cc:545] Read error [127.0.0.1]:4262: Connection reset by peer",
        "failed to recv, got 0 bytes. Connection was likely closed.",
        "NCCL error: remote process exited or there was a network error",
        "Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_what_the_peers_of_a_rank_that_is_gone_are_told_is_known(tmp_path: Path, said: str) -> None:
    (end,) = watch.ends_of_failed([gone(tmp_path, 0, reason=f"the script raised E: {said} (/me/t.py:1)", **RAISED)])
    assert end.follows
    assert end.words == f"{watch.LOST} at /me/t.py:1"


def test_a_stack_of_a_fatal_signal_is_told_from_another(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    assert watch.fatal_signal(path) == ""
    path.write_text(STACKS)
    assert watch.fatal_signal(path) == ""
    path.write_text(f"{STACKS}Fatal Python error: Segmentation fault\n\n{STACKS}")
    assert watch.fatal_signal(path) == "Segmentation fault"


DUMP = """Thread 0x00007f (most recent call first):
  File "/home/me/other.py", line 3 in work

Current thread 0x00007e (most recent call first):
  File "{library}/threading.py", line 10 in wait
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 1072 in _engine_run_backward
  File "{package}/worker/timing/phases.py", line 5 in backward
  File "/home/me/train.py", line 9 in main
  File "/home/me/train.py", line 20 in <module>
"""


def test_the_users_frame_is_the_innermost_that_is_of_no_library(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    path.write_text(DUMP.format(library=sysconfig.get_path("stdlib"), package=watch.PACKAGE))
    assert watch.innermost_frame(path) == Frame(f"{sysconfig.get_path('stdlib')}/threading.py", 10, "wait")
    assert watch.innermost_users_frame(path) == Frame("/home/me/train.py", 9, "main")


def test_of_a_real_dump_with_threads_the_main_one_is_told(tmp_path: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with (tmp_path / "stacks").open("w") as file:
        for _ in range(2):  # the last one counts
            faulthandler.dump_traceback(file)
    over.set()
    thread.join()
    frame = watch.innermost_frame(tmp_path / "stacks")
    assert frame is not None
    assert (frame.file, frame.function) == (__file__, "test_of_a_real_dump_with_threads_the_main_one_is_told")
    assert frame.is_users
    assert not frame.is_waiting


@pytest.mark.parametrize("text", [None, "", "no stack at all"])
def test_where_there_is_no_stack_nothing_is_told(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "stacks"
    if text is not None:
        path.write_text(text)
    assert watch.innermost_frame(path) is None
    assert watch.innermost_users_frame(path) is None


def test_who_stands_in_torch_or_dpdoctor_waits() -> None:
    assert Frame(f"{watch.PACKAGE}/worker/base/agreement.py", 1, "gather").is_waiting
    assert not Frame(f"{watch.PACKAGE}-examples/train.py", 1, "main").is_waiting
