"""Where the time of each traced device went, in rows of text."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis.breakdown import spent
from dpdoctor.analysis.traces import CommonSteps
from dpdoctor.digest import DeviceDigest
from dpdoctor.report.text import NOTHING
from dpdoctor.report.traces.traced import TracedMode, device_words
from dpdoctor.report.traces.words import PART_WORDS, seconds

_SHORT = {"exposed_comm": "exposed comm"}
# The parts of the time by their short names, so that a row fits into eighty columns.
HEADS = ("rank", "device", *(_SHORT.get(part, part) for part in PART_WORDS), "total", "overlap")
# The first of these columns that holds figures.
FIRST_FIGURE = HEADS.index("device") + 1
# So many are shown where there is little room; the page has all.
MOST_ROWS = 40


def device_rows(mode: TracedMode) -> list[tuple[str, ...]]:
    """Return a row under HEADS for each of the first devices: the parts' shares, the time per step and the overlap.

    Shares are of the steps that are whole on every device or, where there is none, of the whole trace.
    """
    common = mode.traces.common
    return [(name, device_words(device), *_figures(device, common)) for name, device in _devices(mode)[:MOST_ROWS]]


def left_to_the_report(mode: TracedMode) -> str:
    """Return in a sentence how many devices have no row; empty: all have one."""
    more = len(_devices(mode)) - MOST_ROWS
    return f"{units.whole(more)} more are in the report." if more > 0 else ""


def _devices(mode: TracedMode) -> list[tuple[str, DeviceDigest]]:
    return [(rank.name, device) for rank in mode.ranks for device in rank.digest.devices if device.whole.total_ns]


def _figures(device: DeviceDigest, common: CommonSteps) -> Iterator[str]:
    found = spent([device], common)
    yield from (units.share(found.ratio(part)) if part in found.parts_ns else "unknown" for part in PART_WORDS)
    yield f"{seconds(found.total_ns / found.num_steps)}/step" if found.num_steps else seconds(found.total_ns)
    nothing = NOTHING if found.knows_communication else "unknown"
    yield nothing if found.overlap_ratio is None else units.share(found.overlap_ratio)
