from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor import units

NUMBERS = st.floats(min_value=1e-12, max_value=1e15) | st.floats(min_value=-1e15, max_value=-1e-12)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1, "1.00"),
        (-1.234, "-1.23"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234567.8, "1,234,568"),
        (0.5, "0.500"),
        (0.00123456, "0.00123"),
        (1e-12, "0.00000000000100"),
    ],
)
def test_digits(value: float, text: str) -> None:
    assert units.digits(value) == text


@pytest.mark.parametrize(("significant", "text"), [(1, "12"), (2, "12"), (4, "12.35"), (6, "12.3457")])
def test_digits_as_many_as_asked_for(significant: int, text: str) -> None:
    assert units.digits(12.345678, significant) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_never_shown_as_one(value: float) -> None:
    for function in (units.digits, units.seconds, units.rate, units.times):
        with pytest.raises(ValueError, match="not a number to show"):
            function(value)


@given(NUMBERS)
def test_digits_is_right_to_half_a_unit_of_the_third_digit(value: float) -> None:
    text = units.digits(value).replace(",", "")
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.005)


@given(NUMBERS)
def test_digits_shows_three_and_never_more_than_the_integer_needs(value: float) -> None:
    text = units.digits(value).lstrip("-").replace(",", "")
    shown = text.replace(".", "").lstrip("0")
    assert len(shown) == 3 if "." in text else len(shown) >= 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (2.5e-10, "0.250 ns"),
        (12e-9, "12.0 ns"),
        (350e-6, "350 µs"),
        (0.02, "20.0 ms"),
        (-0.02, "-20.0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.25, "1.25 s"),
        (119, "119 s"),
        (120, "2.00 min"),
        (5399, "1.50 h"),
        (5340, "89.0 min"),
        (5400, "1.50 h"),
        (86400, "24.0 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_999, "1.00 MB"), (1.5e6, "1.50 MB"), (80e9, "80.0 GB")],
)
def test_size(value: float, text: str) -> None:
    assert units.size(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0.0%"),
        (0.314, "31%"),
        (0.0994, "9.9%"),
        (0.0996, "10%"),
        (-0.0001, "0.0%"),
        (-0.05, "-5.0%"),
        (0.9944, "99%"),
        (0.9994, "99.9%"),
        (0.9996, "100%"),
        (1.004, "100%"),
        (12.3, "1,230%"),
    ],
)
def test_share(ratio: float, text: str) -> None:
    assert units.share(ratio) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "rank", "0 ranks"),
        (1, "rank", "1 rank"),
        (2, "batch", "2 batches"),
        (2, "launch", "2 launches"),
        (2, "process", "2 processes"),
        (2, "index", "2 indexes"),
        (3, "epoch", "3 epochs"),
        (12345, "step", "12,345 steps"),
    ],
)
def test_count(number: int, noun: str, text: str) -> None:
    assert units.count(number, noun) == text


def test_rate_and_factor_and_quantity() -> None:
    assert units.rate(1234.4) == "1,234 samples/s"
    assert units.rate(5.0, "GB/s") == "5.00 GB/s"
    assert units.times(1.307) == "1.31x"
    assert units.quantity(1980, "MHz") == "1,980 MHz"
    assert units.quantity(7, "") == "7.00"
    assert units.whole(11689512) == "11,689,512"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        ("314 ms", "320 ms", "314\N{EN DASH}320 ms"),
        ("999 ms", "1.00 s", "999 ms to 1.00 s"),
        ("1.20x", "1.31x", "1.20\N{EN DASH}1.31x"),
        ("-1.0%", "2.0%", "-1.0 to 2.0%"),
        ("+8.1%", "+12%", "+8.1 to +12%"),
        ("1 worker", "2 workers", "1 worker to 2 workers"),
    ],
)
def test_a_range_says_its_unit_once(low: str, high: str, text: str) -> None:
    assert units.span(low, high) == text


@given(st.floats(min_value=1e-9, max_value=119))
def test_an_axis_uses_the_unit_that_the_text_uses(value: float) -> None:
    scale, unit = units.time_scale(value)
    assert units.seconds(value) == f"{units.digits(value / scale)} {unit}"


@pytest.mark.parametrize(("largest", "scale"), [(0, (1.0, "B")), (2e3, (1e3, "kB")), (3e12, (1e9, "GB"))])
def test_size_scale(largest: float, scale: tuple[float, str]) -> None:
    assert units.size_scale(largest) == scale
