from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.launch import ends, stacks, watch
from dpdoctor.launch.native import SeenRank
from tests.unit.launch.test_native import STACKS, rank

GONE = 2**22 - 1  # above what the kernel gives by default
RESET = "the script raised RuntimeError: Read error [127.0.0.1]:4262: Connection reset by peer (/me/train.py:29)"
RAISED = {"status": "failed", "ending": "raised"}


def gone(directory: Path, number: int, *, stack: str = "", at: int = 0, **said: object) -> SeenRank:
    """Return a rank whose process is gone after 14 steps, with the stack that it left at a time."""
    found = rank(directory, number, steps=14, pid=GONE, **(said or {"status": "running"}))
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
    assert [end.rank for end in ends.failed(ranks)] == [1, 0]
    told = ends.told(ends.failed(ranks))
    assert told.startswith(
        "rank 1, after 14 steps: its process died (Aborted) at /home/me/train.py:9; rank 0, after 14"
    )
    assert f"{ends.LOST} at /me/train.py:29" in told
    assert told.endswith(watch.EQUALLY)  # they stood at different lines


def test_a_rank_that_raised_comes_before_those_that_were_ended_for_it(tmp_path: Path) -> None:
    ranks = [
        gone(tmp_path, 0, at=2, stack=STACKS),
        gone(tmp_path, 1, at=1, reason="the script raised ValueError: no (/me/train.py:3)", **RAISED),
    ]
    told = ends.told(ends.failed(ranks))
    assert told.startswith("rank 1, after 14 steps: the script raised ValueError: no (/me/train.py:3); rank 0")
    assert "was ended by SIGTERM at /home/me/train.py:9" in told
    assert watch.EQUALLY not in told


def test_a_rank_that_was_ended_while_it_left_did_not_begin_it(tmp_path: Path) -> None:
    ranks = [
        gone(tmp_path, 0, stack=STACKS.splitlines()[0], at=1),
        gone(tmp_path, 1, stack="Fatal Python error: Aborted", at=2),
    ]
    assert [end.rank for end in ends.failed(ranks)] == [1, 0]


def test_a_rank_that_was_killed_comes_first_and_all_that_were_ended_are_named(tmp_path: Path) -> None:
    ranks = [gone(tmp_path, 0, at=1, reason=RESET, **RAISED), gone(tmp_path, 1), gone(tmp_path, 2, stack=STACKS, at=3)]
    found = ends.failed(ranks)
    assert [end.rank for end in found] == [1, 0, 2]
    assert "was killed" in found[0].words
    told = ends.told(found)
    assert all(f"rank {number}, after 14 steps" in told for number in range(3))


def test_ranks_that_say_the_same_are_told_of_once(tmp_path: Path) -> None:
    same = {"reason": "the script raised ValueError: no (/me/train.py:3)", **RAISED}
    ranks = [gone(tmp_path, number, at=number, **same) for number in range(9)]
    assert ends.told(ends.failed(ranks)) == f"rank 0, after 14 steps: {same['reason']}"
    others = [gone(tmp_path, 9 + n, at=20, reason=f"other {n}", **RAISED) for n in range(6)]
    assert ends.told(ends.failed([ranks[0], *others])).endswith("rank 11, after 14 steps: other 2; and 3 more")


def test_a_script_that_ended_while_another_rank_went_on_is_named(tmp_path: Path) -> None:
    ended = gone(tmp_path, 1, status="failed", reason="too short", ending="returned")
    lost = gone(tmp_path, 0, reason=RESET, **RAISED)
    told = ends.apart([lost, ended])
    assert told.startswith("the script of rank 1 ended after 14 steps, while that of rank 0 trained on")
    assert told.endswith(f"Rank 0, after 14 steps: {ends.LOST} at /me/train.py:29")
    assert ends.apart([lost]) == ""


def test_a_rank_that_raised_for_a_reason_of_its_own_did_not_wait_for_one_that_ended(tmp_path: Path) -> None:
    ended = gone(tmp_path, 1, status="ok", ending="returned")
    raised = gone(tmp_path, 0, reason="the script raised ValueError: no (/me/train.py:3)", **RAISED)
    assert ends.apart([raised, ended]) == ""


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
    (end,) = ends.failed([gone(tmp_path, 0, reason=f"the script raised E: {said} (/me/t.py:1)", **RAISED)])
    assert end.follows
    assert end.words == f"{ends.LOST} at /me/t.py:1"


def test_a_stack_of_a_fatal_signal_is_told_from_another(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    assert stacks.fatal(path) == ""
    path.write_text(STACKS)
    assert stacks.fatal(path) == ""
    path.write_text(f"{STACKS}Fatal Python error: Segmentation fault\n\n{STACKS}")
    assert stacks.fatal(path) == "Segmentation fault"
