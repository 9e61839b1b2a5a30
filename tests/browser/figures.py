"""How the figures of run.json have to read, worked out from run.json and dpdoctor.units alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dpdoctor import units

JSON = dict[str, Any]

NOTHING = "\N{EM DASH}"
BASELINE = "single"
FORMATS: dict[str, Callable[[float], str]] = {
    "s": units.seconds,
    "x": units.times,
    "ratio": units.share,
    "bytes": units.size,
}
# A number with the unit behind it, but not the digits inside of a name such as bf16 or cuda:0.1.2.
NUMBER = re.compile(
    r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?: ?(?:%|samples/s|x|ms|µs|ns|s|min|h|GB/s|GB|MB|kB|B)(?![\w/]))?"
)
# Intervals are at 95% wherever they stand.
LEVEL = "95%"


def amount(value: float, unit: str) -> str:
    """Return a number with its unit."""
    return FORMATS[unit](value) if unit in FORMATS else units.quantity(value, unit)


def shown(figure: JSON) -> str:
    """Return how a figure reads: its value, or that it is unknown."""
    return "unknown" if figure["value"] is None else amount(figure["value"], figure["unit"])


def interval(figure: JSON) -> str:
    """Return how the interval of a figure reads; empty where it has none."""
    low, high = figure["low"], figure["high"]
    if low is None or high is None or low == high:
        return ""
    return units.span(amount(low, figure["unit"]), amount(high, figure["unit"]))


def is_withheld(mode: JSON) -> bool:
    """Return whether the figures of a mode may not be shown: it went wrong, or did not do what its name says."""
    checks = (mode["conversion"] or {"proof": []})["proof"]
    return mode["status"] in ("failed", "skipped") or any(check["ok"] is False for check in checks)


def numbers(text: str) -> set[str]:
    """Return every number in a text, with its unit."""
    return set(NUMBER.findall(text))


def known_numbers(run: JSON) -> set[str]:
    """Return every number that a page may show of a run: its figures, counts, the digits of its names, shares of time.

    Of a figure that is `1.20 s`, `1.20` alone is known as well: enumerations and ranges give a unit once.
    """
    found = {LEVEL, *_derived(run), *_short_shares(run)}
    for value in _leaves(run):
        found |= numbers(value)
    return found | {number.partition(" ")[0].rstrip("x%") for number in found}


def _leaves(value: Any) -> Iterator[str]:
    """Yield as text all that a value of run.json consists of."""
    if isinstance(value, dict) and {"value", "unit", "reason"} <= set(value):
        yield from (shown(value), interval(value), str(value["n"]), value["reason"] or "")
    elif isinstance(value, dict):
        yield units.whole(len(value))
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        yield units.whole(len(value))
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int):
        yield units.whole(value)
    elif isinstance(value, float):
        yield from (units.digits(value), units.share(value), units.whole(int(value)) if value.is_integer() else "")


def _short_shares(run: JSON) -> Iterator[str]:
    """Yield the shares of the first screen: parts of a step, half widths of intervals, efficiencies, costs."""
    for mode in run["modes"].values():
        yield from map(units.share, _parts_of_a_step(mode))
        rate, linear = mode["throughput"], mode["scaling_efficiency"]["value"]
        if rate["value"] and rate["low"] is not None:
            yield units.share((rate["high"] - rate["low"]) / 2 / rate["value"])
        if linear is not None:
            yield units.share(linear)
    yield from (units.share(found["cost"]["value"]) for found in run["findings"] if found["cost"]["value"] is not None)


def _parts_of_a_step(mode: JSON) -> list[float]:
    """Return data, compute, communication and other as shares of a step; none where they are unknown."""
    budget = mode["breakdown"]
    traced = budget and budget["exposed_comm"]["value"] is not None and budget["step"]["value"]
    exposed = budget["exposed_comm"]["value"] / traced if traced else 0.0
    if any(rank["device_type"] != "cpu" for rank in mode["ranks"]):
        if not traced:
            return []
        waits, computes = budget["idle_by"]["data"]["value"] / traced, budget["compute"]["value"] / traced
        return [waits, computes, exposed, 1 - waits - computes - exposed]
    times = {name: phase["value"] or 0.0 for name, phase in mode["phases"].items()}
    total = sum(times.values())
    if not total:
        return []
    removed = mode["ablations"].get("no_comm", {}).get("share", {})
    inside = removed["value"] if (removed.get("low") or 0.0) > 0 else exposed if mode["world_size"] > 1 else 0.0
    waits, passes = times["data_wait"] / total, (times["forward"] + times["backward"]) / total
    return [waits, passes - inside, inside, 1 - waits - passes]


def _derived(run: JSON) -> Iterator[str]:
    """Yield what is not in run.json but follows from it: the shares of a step, and what loader processes alone give."""
    for mode in run["modes"].values():
        times = [phase["value"] for phase in mode["phases"].values() if phase["value"] is not None]
        yield from (units.share(time / sum(times)) for time in times if sum(times) > 0)
        fall = mode["waterfall"]
        ideal, given = (fall["ideal"]["value"], fall["terms"]["loader_processes"]) if fall else (None, {})
        ends = [given.get(end) for end in ("value", "low", "high")]
        yield from (units.times(ideal / (ideal + end)) for end in ends if ideal is not None and end is not None)
