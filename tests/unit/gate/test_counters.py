from __future__ import annotations

import pytest

from dpdoctor.gate import counters
from tests.builders.counted_modes import mode


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all_reduce.count", "calls of all_reduce"),
        ("all_gather.bytes", "bytes of all_gather"),
        ("syncs.item", "waits by item"),
        ("inputs.bytes", "bytes of the input batch"),
        ("h2d_bytes", "bytes copied to the device"),
        ("micro_batches", "training passes per step"),
        ("something_new", "something_new"),
    ],
)
def test_names_in_words(name: str, words: str) -> None:
    assert counters.words(name) == words


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("all_reduce.bytes", 46_758_048, "46,758,048"),
        (counters.PEAK_MEMORY, 46_758_048, "46.8 MB"),
        ("inputs", "float32 32x3", "float32 32x3"),
        ("inputs", "", "none"),
        ("h2d_bytes", None, "unknown"),
    ],
)
def test_values_are_exact_where_they_are_compared_exactly(name: str, value: int | str | None, text: str) -> None:
    assert counters.value_text(name, value) == text


def test_a_mode_of_which_nothing_was_counted_has_no_values() -> None:
    with pytest.raises(ValueError, match="no step of this mode was counted"):
        counters.values(mode(None))


def test_values_have_what_is_unknown_and_the_highest_peak() -> None:
    found = counters.values(mode())
    assert found["h2d_bytes"] is None
    assert found[counters.PEAK_MEMORY] == 400_000_000
