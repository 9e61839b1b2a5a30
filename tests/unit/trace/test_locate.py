"""Which files are traces, and in which order."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dpdoctor.errors import TraceError, UsageError
from dpdoctor.trace.locate import locate
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
