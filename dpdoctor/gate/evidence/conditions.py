"""What the machine was like while a mode was measured: it explains a difference, but forbids no comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.windows import NS
from dpdoctor.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Of all launches of a mode; None: this machine does not tell, or it was not sampled.

    Attributes:
        pressure: share of the time in which some task waited for a core; ratio.
        throttled: periods of a CPU quota in which it was used up.
        sm_clock_mhz: median of all GPUs.
    """

    pressure: float | None
    throttled: int | None
    sm_clock_mhz: float | None


def conditions(launches: Sequence[LaunchFacts]) -> Conditions:
    """Return what was sampled while something was measured."""
    found = [_samples(launch) for launch in launches]
    pressures = [p for samples in found for p in _growths(samples, "pressure_cpu_s", per_second=True)]
    throttled = [t for samples in found for t in _growths(samples, "num_throttled", per_second=False)]
    clocks = [s.values["sm_clock_mhz"] for samples in found for s in samples if "sm_clock_mhz" in s.values]
    return Conditions(
        pressure=median(pressures) if pressures else None,
        throttled=round(sum(throttled)) if throttled else None,
        sm_clock_mhz=median(clocks) if clocks else None,
    )


def _samples(launch: LaunchFacts) -> list[Sample]:
    windows = [rank.window for window in launch.windows() for rank in window.ranks]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    return [sample for sample in launch.samples if begin <= sample.at_ns <= end]


def _growths(samples: Sequence[Sample], name: str, *, per_second: bool) -> Iterator[float]:
    """Yield by how much a cumulative reading of the host grew in a launch; nothing where it was read only once."""
    seen = [(s.at_ns * NS, s.values[name]) for s in samples if s.source == "host" and name in s.values]
    if len(seen) > 1:
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        yield (last - first) / (last_s - first_s) if per_second else last - first
