"""Which files are found, and refused; shards: every file in one, of like size, the same on every machine."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.errors import TraceError, UsageError
from dpdoctor.trace.files import Shard, in_shard, locate, parse_shard
from tests.builders.documents import REAL, complete, document, needs_real_traces

TRACE = document(complete())


def place(folder: Path, *names: str, content: bytes = TRACE) -> None:
    """Write a trace under each name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def names(folder: Path, *paths: str) -> list[str]:
    """Return what is located among these paths of the folder."""
    return [path.relative_to(folder).as_posix() for path in locate([folder / path for path in paths])]


def test_folders_are_searched_and_ranks_ordered_as_numbers(tmp_path: Path) -> None:
    place(tmp_path, "rank10.json", "a/rank_2.json.gz", "node_1.2.pt.trace.json", "b/c/Rank-0.pt.trace.json.gz")
    place(tmp_path, "notes.txt", "other.gz")
    assert names(tmp_path, ".") == [
        "b/c/Rank-0.pt.trace.json.gz",
        "a/rank_2.json.gz",
        "rank10.json",
        "node_1.2.pt.trace.json",
    ]


def test_of_a_run_directory_the_traces(tmp_path: Path) -> None:
    place(tmp_path, "ddp/rank10/trace.json.gz", "ddp/rank9/trace.json.gz", "timeline.json.gz")
    place(tmp_path, "run.json", "ddp/rank9/rank.json", content=b'{"schema": 1, "ranks": [{}]}')
    assert names(tmp_path, ".") == ["ddp/rank9/trace.json.gz", "ddp/rank10/trace.json.gz"]


def test_a_file_that_is_named_is_taken_whatever_its_name(tmp_path: Path) -> None:
    place(tmp_path, "profile", "folder/rank1.json")
    assert names(tmp_path, "profile", "folder") == ["folder/rank1.json", "profile"]


def test_a_damaged_file_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    place(tmp_path, "rank0.json")
    (tmp_path / "rank1.json.gz").write_bytes(b"\x1f\x8b damaged")
    assert names(tmp_path, ".") == ["rank0.json", "rank1.json.gz"]


def test_links_to_one_trace_may_stand_for_ranks(tmp_path: Path) -> None:
    place(tmp_path, "rank0.json")
    (tmp_path / "rank1.json").symlink_to("rank0.json")
    assert names(tmp_path, ".") == ["rank0.json", "rank1.json"]


@pytest.mark.parametrize("again", ["rank0.json", ".", "../{}/rank0.json"])
def test_a_file_named_twice(tmp_path: Path, again: str) -> None:
    place(tmp_path, "rank0.json")
    with pytest.raises(UsageError, match=r"rank0\.json: named twice"):
        names(tmp_path, "rank0.json", again.format(tmp_path.name))


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing: no such file or folder"):
        locate([tmp_path / "missing"])


@pytest.mark.parametrize("content", [b"{}", b"[1, 2]", b""])
def test_a_folder_without_a_trace(tmp_path: Path, content: bytes) -> None:
    place(tmp_path, "a.json", content=content)
    with pytest.raises(TraceError, match="no trace in this folder"):
        locate([tmp_path])


@needs_real_traces
def test_the_real_traces() -> None:
    found = [path.relative_to(REAL).as_posix() for path in locate([REAL])]
    assert len(found) == 12
    assert found[-1] == "resnet50_num_workers_4.json.gz"
    assert found.index("two_ranks_of_128/rank-0.json.gz") < found.index("v100x2_ddp_rank1.json.gz")


SIZES = st.lists(st.integers(0, 10**9), max_size=60)


@given(sizes=SIZES, count=st.integers(1, 9))
def test_every_file_is_in_one_shard(sizes: list[int], count: int) -> None:
    shards = [in_shard(sizes, Shard(index=index, count=count)) for index in range(1, count + 1)]
    assert sorted(position for shard in shards for position in shard) == list(range(len(sizes)))
    assert all(shard == sorted(shard) for shard in shards)


@given(sizes=SIZES, count=st.integers(1, 9))
def test_shards_are_of_like_size(sizes: list[int], count: int) -> None:
    held = [sum(sizes[at] for at in in_shard(sizes, Shard(index=index, count=count))) for index in range(1, count + 1)]
    # Graham's bound: the last file that the fullest shard took was not more than all files can be.
    assert max(held) - min(held) <= max(sizes, default=0) + len(sizes)


def test_empty_files_are_spread() -> None:
    assert [in_shard([0] * 6, Shard(index=index, count=3)) for index in (1, 2, 3)] == [[0, 3], [1, 4], [2, 5]]


def test_what_a_person_writes() -> None:
    assert parse_shard("2/8") == Shard(index=2, count=8)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3", ""])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError, match=r"not I/N with I from 1 to N, as in 1/8 to 8/8"):
        parse_shard(text)


@pytest.mark.parametrize(("index", "count"), [(0, 1), (2, 1)])
def test_no_shard_can_be_made_that_is_none(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="shard"):
        Shard(index=index, count=count)
