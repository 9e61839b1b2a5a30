from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.attribution.tensor_bytes import may_be, ranks_of, whole_bytes

parts, ranks = st.integers(1, 1 << 40), st.integers(1, 4096)


@given(part=parts, n=ranks)
def test_operator_and_annotation_together_tell_the_ranks(part: int, n: int) -> None:
    both = n * part + part
    assert ranks_of("all_gather", part, both) == n
    assert ranks_of("reduce_scatter", n * part, both) == n
    assert whole_bytes("all_gather", part, None, n) == whole_bytes("reduce_scatter", n * part, None, n) == n * part


@pytest.mark.parametrize(
    ("operation", "input_bytes", "operator_bytes"),
    [
        ("all_gather", 100, 350),  # parts are alike: 250 is no multiple
        ("all_gather", 100, 100),
        ("all_gather", 0, 100),
        ("all_gather", None, 300),
        ("reduce_scatter", 100, None),
        ("reduce_scatter", 100, 90),
        ("all_reduce", 100, 100),
    ],
)
def test_what_does_not_agree_tells_nothing(operation: str, input_bytes: int | None, operator_bytes: int | None) -> None:
    assert ranks_of(operation, input_bytes, operator_bytes) is None


def test_a_reduce_scatter_is_told_from_an_all_reduce_by_its_sizes() -> None:
    assert may_be("reduce_scatter", 200, 300)
    assert not may_be("reduce_scatter", 200, 200)
    assert may_be("all_reduce", 200, 200)
    assert not may_be("all_reduce", 200, 100)
    assert may_be("all_reduce", 200, None)


@pytest.mark.parametrize(
    ("operation", "sizes", "expected"),
    [
        ("all_reduce", (40, 40, 2), 40),
        ("all_gather", (10, 80, None), 80),
        ("all_gather", (10, None, 8), 80),
        ("all_gather", (10, None, None), None),
        ("reduce_scatter", (80, 10, 8), 80),
        ("gather", (10, 0, 8), 80),
        ("recv", (0, 64, None), 64),
        ("scatter", (10, 80, 8), None),
        ("barrier", (0, 0, 2), None),
    ],
)
def test_whole_bytes_are_those_of_nccl_tests(
    operation: str, sizes: tuple[int | None, int | None, int | None], expected: int | None
) -> None:
    assert whole_bytes(operation, *sizes) == expected
