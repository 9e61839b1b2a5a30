"""The only place where numbers become text."""

from __future__ import annotations

import math

_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"), (1e-9, "ns"))
_NUMBER = "+-0123456789,."
_BYTE_STEPS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def digits(value: float, significant: int = 3) -> str:
    """Return `value` with `significant` digits and no exponent; integers above that stay whole.

    Raises:
        ValueError: NaN or infinite; what is unknown is no number and is said in words.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number to show")
    if value == 0:
        return "0"
    # The exponent of the rounded value: 9.996 becomes 10.0, not 10.00.
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, significant - 1 - exponent)}f}"


def seconds(value: float) -> str:
    """Return a duration given in seconds as text: 1.25 s, 20.0 ms, 350 \N{MICRO SIGN}s; min and h from 120 s."""
    if value == 0:
        return "0 s"
    shown = _shown(value)
    if shown >= 5400:
        return f"{digits(value / 3600)} h"
    if shown >= 120:
        return f"{digits(value / 60)} min"
    scale, unit = _scale(shown, _TIME_STEPS)
    return f"{digits(value / scale)} {unit}"


def size(value: float) -> str:
    """Return a number of bytes as text with decimal prefixes (GB = 1e9)."""
    scale, unit = size_scale(value)
    return f"{value:.0f} B" if unit == "B" else f"{digits(value / scale)} {unit}"


def share(ratio: float) -> str:
    """Return a ratio as a percentage: 38%, 4.2%, 0.4%, 99.8%."""
    percent = round(100 * ratio, 1) + 0.0  # + 0.0: a share just below zero reads 0.0%, not -0.0%
    is_fine = abs(percent) < 9.95 or 99.5 <= abs(percent) < 100
    return f"{percent:.1f}%" if is_fine else f"{100 * ratio:,.0f}%"


def rate(value: float, unit: str = "samples/s") -> str:
    """Return a rate with its unit: 1,234 samples/s."""
    return f"{digits(value)} {unit}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun in the right form: 1 rank, 2 ranks, 3 batches."""
    if number == 1:
        return f"1 {noun}"
    hisses = noun.endswith(("ch", "s", "x")) and not noun.endswith("epoch")
    plural = f"{noun}es" if hisses else f"{noun}s"
    return f"{number:,} {plural}"


def times(value: float) -> str:
    """Return a factor as text: 1.31x."""
    return f"{digits(value)}x"


def quantity(value: float, unit: str) -> str:
    """Return a number with a unit that has no prefixes of its own: 250 W, 1,980 MHz; without one the number alone."""
    return f"{digits(value)} {unit}".rstrip()


def whole(number: int) -> str:
    """Return a whole number with its thousands marked: 11,689,512."""
    return f"{number:,}"


def span(low: str, high: str) -> str:
    """Return two texts of this module as a range, their unit once where it is the same: 314\N{EN DASH}320 ms.

    Beside a sign a dash would be misread, and between two units: -1.2 to 3.4%, 999 ms to 1.00 s.
    """
    unit = low.lstrip(_NUMBER)
    if unit != high.lstrip(_NUMBER):
        return f"{low} to {high}"
    between = " to " if {"-", "+"} & {low[0], high[0]} else "\N{EN DASH}"
    return f"{low.removesuffix(unit)}{between}{high}"


def within(text: str, low: str, high: str | None) -> str:
    """Return a figure with its range in brackets, their unit once where it is one: 1.42x (1.35\N{EN DASH}1.49).

    `high` None: it has no upper end.
    """
    if high is None:
        return f"{text} ({above(low)})"
    unit, ends = text.lstrip(_NUMBER), span(low, high)
    is_of_all = {low.lstrip(_NUMBER), high.lstrip(_NUMBER)} == {unit}
    return f"{text} ({ends.removesuffix(unit) if is_of_all else ends})"


def above(low: str) -> str:
    """Return a range without an upper end."""
    return f"at least {low}"


def time_scale(largest: float) -> tuple[float, str]:
    """Return (seconds per axis unit, unit) for an axis of durations that reaches `largest` seconds."""
    return _scale(_shown(largest), _TIME_STEPS)


def size_scale(largest: float) -> tuple[float, str]:
    """Return (bytes per axis unit, unit) for an axis of sizes that reaches `largest` bytes."""
    return _scale(_shown(largest), _BYTE_STEPS)


def _scale(shown: float, steps: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((step for step in steps if shown >= step[0]), steps[-1])


def _shown(value: float) -> float:
    """Return the magnitude as three digits show it, so that 0.9996 s is 1.00 s and not 1,000 ms."""
    return float(f"{abs(value):.2e}")
