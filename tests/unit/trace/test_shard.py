from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.errors import UsageError
from dpdoctor.trace.shard import Shard, parse, select

SIZES = st.lists(st.integers(0, 10**9), max_size=60)


@given(sizes=SIZES, count=st.integers(1, 9))
def test_every_file_is_in_one_shard(sizes: list[int], count: int) -> None:
    shards = [select(sizes, Shard(index=index, count=count)) for index in range(1, count + 1)]
    assert sorted(position for shard in shards for position in shard) == list(range(len(sizes)))
    assert all(shard == sorted(shard) for shard in shards)


@given(sizes=SIZES, count=st.integers(1, 9))
def test_shards_are_of_like_size(sizes: list[int], count: int) -> None:
    held = [sum(sizes[at] for at in select(sizes, Shard(index=index, count=count))) for index in range(1, count + 1)]
    # Graham's bound: the last file that the fullest shard took was not more than all files can be.
    assert max(held) - min(held) <= max(sizes, default=0) + len(sizes)


def test_empty_files_are_spread() -> None:
    assert [select([0] * 6, Shard(index=index, count=3)) for index in (1, 2, 3)] == [[0, 3], [1, 4], [2, 5]]


def test_what_a_person_writes() -> None:
    assert parse("2/8") == Shard(index=2, count=8)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3", ""])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError, match=r"not I/N with I from 1 to N, as in 1/8 to 8/8"):
        parse(text)


@pytest.mark.parametrize(("index", "count"), [(0, 1), (2, 1)])
def test_no_shard_can_be_made_that_is_none(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="shard"):
        Shard(index=index, count=count)
