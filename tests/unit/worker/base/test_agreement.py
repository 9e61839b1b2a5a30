from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpdoctor.worker.base.agreement import LEAST_WAIT_S, Agreement, Alone, LostError, Ranks, Stored, world_name
from dpdoctor.worker.base.director import FULL, KINDS, Segment

ABLATIONS = (FULL, "cached_batches", "no_comm")
segments = st.builds(
    Segment,
    kind=st.sampled_from(KINDS),
    ablation=st.sampled_from(ABLATIONS),
    round=st.integers(0, 1000),
    skip=st.integers(0, 64),
    num_steps=st.integers(0, 10**6),
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agreement]:
    """Give the agreement of a process group of this process alone."""
    path: Path = tmp_path_factory.mktemp("group") / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    yield Ranks(ABLATIONS, timeout_s=10, fail=pytest.fail)
    dist.destroy_process_group()


@given(segment=segments)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_segment_arrives_as_it_was_sent(ranks: Agreement, segment: Segment) -> None:
    assert ranks.share(segment) == segment
    assert Alone().share(segment) == segment


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_are_gathered(ranks: Agreement, numbers: list[int]) -> None:
    assert ranks.gather(numbers) == Alone().gather(numbers) == [numbers]


ONE_LEAVES = """
import os, sys
import torch.distributed as dist
from dpdoctor.worker.base.agreement import Ranks

rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)


def fail(reason):
    print(f"failed: {reason}", file=sys.stderr, flush=True)
    os._exit(1)  # as a rank leaves: gloo's threads may abort an interpreter that tears itself down beside them


ranks = Ranks(("full",), 20, fail)
ranks.gather([rank])
if rank == 0:
    ranks.gather([1])
os._exit(0)
"""


def test_a_rank_that_is_gone_fails_the_mode_and_not_the_script(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ONE_LEAVES, str(tmp_path / "rendezvous")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    (failed,) = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert "20.0 s" in failed
    assert "other ranks" in failed
    assert "Traceback" not in done.stderr


SEGMENT = Segment(kind="measure", ablation="full", round=2, skip=1, num_steps=5)


class Ticking:
    """A clock that moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.01)


def pair() -> tuple[Stored, Stored, Ticking]:
    store, clock = dist.HashStore(), Ticking()
    first, second = (Stored(store, rank, 2, clock=clock, sleep=clock.sleep) for rank in (0, 1))
    return first, second, clock


def together(*calls):
    """Return what the calls return, each in a thread of its own."""
    results = [None] * len(calls)

    def run(index):
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_hear_each_other_and_what_rank_0_decides():
    store = dist.HashStore()
    first, second = Stored(store, 0, 2), Stored(store, 1, 2)
    for number in range(5):
        assert (
            together(lambda n=number: first.gather([n, 1]), lambda n=number: second.gather([n, 2]))
            == [[[number, 1], [number, 2]]] * 2
        )
        assert together(lambda: first.share(SEGMENT), lambda: second.share(None)) == [SEGMENT, SEGMENT]


def test_keys_do_not_pile_up():
    store = dist.HashStore()
    alone = Stored(store, 0, 1)
    for number in range(20):
        alone.gather([number])
    assert store.num_keys() <= 3


def test_whoever_waits_for_one_that_left_learns_it_at_once():
    first, second, clock = pair()
    second.leave(1)
    begin_s = clock()
    with pytest.raises(LostError, match="rank 1 left after 1 step"):
        first.gather([0])
    assert clock() - begin_s < 1


def test_nobody_waits_for_ever():
    first, _, clock = pair()
    begin_s = clock()
    with pytest.raises(LostError, match="rank 1 did not come within"):
        first.gather([0])
    assert clock() - begin_s == pytest.approx(LEAST_WAIT_S, rel=0.1)


def test_whoever_comes_too_late_learns_that_the_other_gave_up():
    first, second, _ = pair()
    with pytest.raises(LostError, match="rank 1 did not come within"):
        first.gather([0])
    first.leave(2)
    with pytest.raises(LostError, match="rank 0 left after 2 steps"):
        second.gather([0])


def test_whoever_comes_just_when_the_other_would_give_up_is_heard(monkeypatch):
    first, second, clock = pair()
    store, begin_s, heard = first._store, clock(), []
    check = store.check

    def check_and_come(keys):
        are_there = check(keys)
        if len(keys) > 1 and clock() - begin_s > LEAST_WAIT_S and not heard:
            heard.append(None)
            heard.append(second.gather([2]))
        return are_there

    monkeypatch.setattr(
        first,
        "_store",
        SimpleNamespace(set=store.set, get=store.get, delete_key=store.delete_key, check=check_and_come),
    )
    assert first.gather([1]) == heard[1] == [[1], [2]]


def test_what_took_longer_is_waited_for_longer():
    first, second, clock = pair()
    clock.now_s += 100
    begin_s = clock()
    with pytest.raises(LostError):
        first.gather([0])
    assert clock() - begin_s == pytest.approx(300, rel=0.1)
    second.leave(0)


def test_a_store_that_is_gone_is_no_error_of_the_scripts():
    class Gone:
        def set(self, *_):
            raise dist.DistNetworkError("connection reset\nmore")

    with pytest.raises(LostError, match=r"the store of the script's process group failed: connection reset$"):
        Stored(Gone(), 0, 2).gather([1])
    Stored(Gone(), 0, 2).leave(3)


def test_whoever_asks_first_names_the_world():
    store = dist.HashStore()
    assert [world_name(store, name) for name in ("0-11", "0-12")] == ["0-11", "0-11"]


class Late:
    """A store of which a rank gets what it asks for some time after it was there."""

    def __init__(self, store: dist.HashStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        time.sleep(0.2)
        return self._store.get(key)


def test_what_a_slow_rank_has_not_read_yet_stays():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=2))
    first, second = Stored(store, 0, 2), Stored(Late(store), 1, 2)
    assert (
        together(
            lambda: [first.gather([1]), first.share(SEGMENT), first.gather([2])],
            lambda: [second.gather([3]), second.share(None), second.gather([4])],
        )
        == [[[[1], [3]], SEGMENT, [[2], [4]]]] * 2
    )
