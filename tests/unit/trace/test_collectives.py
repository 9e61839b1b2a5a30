"""What communication events say in their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpdoctor.trace.model import Collective
from tests.builders.documents import complete, document, kernel, read_bytes

METADATA = {
    "Collective name": "allreduce",
    "dtype": "BFloat16",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 41,
}


def only(folder: Path, event: dict[str, Any]) -> Collective:
    """Return what is said of this event, which follows one that says nothing."""
    (said,) = read_bytes(folder, document(complete(), event)).collectives
    return said


def test_metadata_of_nccl(tmp_path: Path) -> None:
    assert only(tmp_path, kernel("ncclDevKernel_AllReduce", **METADATA)) == Collective(
        row=1,
        name="allreduce",
        dtype="BFloat16",
        in_bytes=2000,
        out_bytes=2000,
        group="0",
        group_size=2,
        ranks=(0, 1),
        seq=41,
    )


@pytest.mark.parametrize("ranks", ["[0, 1, ..., 7]", "", 5, [0.5], None, {"a": 1}, ["0"], "[" * 3000])
def test_ranks_that_are_not_written_whole(tmp_path: Path, ranks: object) -> None:
    assert only(tmp_path, kernel(**{**METADATA, "Process Group Ranks": ranks})).ranks == ()


def test_ranks_as_a_list(tmp_path: Path) -> None:
    assert only(tmp_path, kernel(**{**METADATA, "Process Group Ranks": [3, 5]})).ranks == (3, 5)


@pytest.mark.parametrize(
    ("nelems", "dtype"), [(-1, "Float"), (10**30, "Float"), ("9", "Float"), (9, "Strange"), (9, 4)]
)
def test_sizes_that_cannot_be(tmp_path: Path, nelems: object, dtype: object) -> None:
    assert only(tmp_path, kernel(**{**METADATA, "In msg nelems": nelems, "dtype": dtype})).in_bytes is None


@pytest.mark.parametrize(
    ("dims", "types", "num_bytes"),
    [
        ([[2, 3], [5]], ["float", "long int"], 64),
        ([[[10], [20, 2]], []], [["c10::BFloat16", "double"], ""], 340),
        ([[[10], [20]]], ["c10::Half"], 60),
        ([[]], ["float"], 4),
        ([[7]], ["Strange"], None),
        ([[-7]], ["float"], None),
        ([[10**12, 10**12]], ["float"], None),
        ([["7"]], ["float"], None),
        ("[[7]]", ["float"], None),
        ([[7]], None, None),
    ],
)
def test_shapes_of_spans(tmp_path: Path, dims: object, types: object, num_bytes: int | None) -> None:
    said = only(tmp_path, complete("gloo:all_reduce", args={"Input Dims": dims, "Input type": types}))
    assert (said.name, said.in_bytes, said.out_bytes) == (None, num_bytes, None)


def test_shapes_of_other_operators_are_not_kept(tmp_path: Path) -> None:
    event = complete("aten::mm", args={"Input Dims": [[2, 3]], "Input type": ["float"]})
    assert read_bytes(tmp_path, document(event)).collectives == ()


def test_text_that_cannot_be_decoded_says_nothing(tmp_path: Path) -> None:
    event = complete("gloo:all_reduce", args={"Input Dims": [[4]], "Input type": ["HERE"]})
    (said,) = read_bytes(tmp_path, document(event).replace(b"HERE", b"\xff")).collectives
    assert said.in_bytes is None
