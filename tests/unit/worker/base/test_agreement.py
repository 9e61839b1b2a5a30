from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpdoctor.worker.base.agreement import Agreement, Alone, Ranks
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
