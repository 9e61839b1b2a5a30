"""Why GPUs ran below their clocks, as a strip: a row per reason, a mark for each reading that names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import Sample
from dpdoctor.analysis.disturbances import FAULTS
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.series import THROTTLE_REASONS
from dpdoctor.report.drawing.strips import Strip
from dpdoctor.report.drawing.thin import thin
from dpdoctor.report.text import listed

NS = 1e-9
TITLE = "GPU: reasons for lowered clocks"
# Bits of NVML's clocks event reasons that are usual or wanted, as nvml.h names them.
_USUAL = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "power cap",
    0x010: "sync boost",
    0x100: "clocks of the display",
}
REASONS = {**FAULTS, **_USUAL}
# More sources are counted, not named.
MOST_NAMED = 4
MOST_MARKS = 200


def throttle_strip(samples: Sequence[Sample], origin_ns: int) -> tuple[Strip | None, str]:
    """Return the strip and the same in words; (None, "") where no driver tells, (None, that) where none was named."""
    known = [sample for sample in samples if THROTTLE_REASONS in sample.values]
    if not known:
        return None, ""
    named = {bit: found for bit in _bits(known) if (found := [sample for sample in known if _bits_of(sample) & bit])}
    if not named:
        return None, f"None of {units.count(len(known), 'reading')} names a reason for lowered clocks."
    rows = sorted(named, key=lambda bit: (bit not in FAULTS, bit))
    traces = tuple(_marks(bit, named[bit], origin_ns) for bit in rows)
    axis = {"type": "category", "fixedrange": True, "categoryorder": "array", "autorange": "reversed"}
    keys = ((charts.VERMILION, "something is wrong"), (charts.GREY, "usual or wanted"))
    strip = Strip(title=TITLE, traces=traces, keys=keys, axis={**axis, "categoryarray": [_reason(bit) for bit in rows]})
    return strip, " ".join(f"{_words(bit, named[bit], len(known))}." for bit in rows)


def _marks(bit: int, named: Sequence[Sample], origin_ns: int) -> dict[str, Any]:
    shown = [named[i] for i in thin([float(sample.at_ns) for sample in named], MOST_MARKS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _reason(bit),
        "x": [round((sample.at_ns - origin_ns) * NS, 3) for sample in shown],
        "y": [_reason(bit)] * len(shown),
        "text": [charts.plain(f"{sample.source}: {_reason(bit)}") for sample in shown],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "square", "size": 7, "color": charts.VERMILION if bit in FAULTS else charts.GREY},
    }


def _bits_of(sample: Sample) -> int:
    return int(sample.values[THROTTLE_REASONS])


def _bits(samples: Sequence[Sample]) -> list[int]:
    """Return every bit that any reading has, one known to nvml.h or not."""
    every = 0
    for sample in samples:
        every |= _bits_of(sample)
    return [1 << place for place in range(every.bit_length()) if every >> place & 1]


def _reason(bit: int) -> str:
    return REASONS.get(bit, f"another reason (bit {bit.bit_length() - 1})")


def _words(bit: int, named: Sequence[Sample], num_readings: int) -> str:
    sources = sorted({sample.source for sample in named})
    who = listed(sources) if len(sources) <= MOST_NAMED else units.count(len(sources), "GPU")
    return f"{_reason(bit)}: {units.share(len(named) / num_readings)} of the readings, on {who}"
