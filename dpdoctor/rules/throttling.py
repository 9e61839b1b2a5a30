"""throttling: a GPU runs slower than it could, because it is too hot or gets too little power."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, Launch, Sample, stats
from dpdoctor.rules._base import SMALL, CannotTell, Case, Rule, above_zero, faster_without, severity
from dpdoctor.rules._traced import launch_of, on_gpu

# Bits of NVML's clocks event reasons that say something is wrong, as nvml.h names them. The power cap (0x4) is usual
# under load, and idle (0x1) or clocks set by the user (0x2) are no fault.
FAULTS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
REASONS, CLOCK = "throttle_reasons", "sm_clock_mhz"


def _check(case: Case) -> Finding | CannotTell | None:
    launch = launch_of(case)
    if launch is None or not on_gpu(case) or not (samples := _samples(launch)):
        return None
    known = {source: [s for s in found if REASONS in s.values] for source, found in samples.items()}
    if not any(known.values()):
        why = next((s.unknown[REASONS] for found in samples.values() for s in found if REASONS in s.unknown), "")
        return CannotTell(reason=f"the driver does not tell why clocks are lowered: {why}".removesuffix(": "))
    source = max(known, key=lambda name: _share(known[name]))
    share = _share(known[source])
    cost = _cost(known[source], [sample for found in known.values() for sample in found])
    if share < SMALL or (cost.value is not None and cost.value < SMALL):
        return None
    # Throttled it was; only what that costs may be nothing.
    is_told = cost.low is None or above_zero(cost)
    lost = f": up to {units.share(cost.value)} of each step" if cost.value is not None and is_told else ""
    return Finding(
        rule="throttling",
        mode=case.name,
        severity=("warning" if cost.value is None else severity(cost.value)) if is_told else "info",
        status="inferred",
        title=f"{source} is throttled in {units.share(share)} of the time{lost}",
        cost=cost,
        evidence=(
            f"{units.share(share)} of {units.count(len(known[source]), 'reading')} name a reason: "
            + ", ".join(_reasons(known[source])),
            *_clock_words(known[source]),
        ),
        cause=None,
        remedy="cool the machine and look at its power supply; nothing in the script mends this, and figures of this "
        "run should not be compared with another's",
        predicted=faster_without(cost) if cost.value is not None else None,
        gain="at most",
    )


def _samples(launch: Launch) -> dict[str, list[Sample]]:
    """Return the readings of each GPU while something was measured."""
    windows = [w for rank in launch.ranks for w in rank.windows if w.kind == "measure"]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in launch.samples:
        if sample.source.startswith("gpu") and begin <= sample.at_ns <= end:
            found[sample.source].append(sample)
    return dict(found)


def _is_throttled(sample: Sample) -> bool:
    return bool(int(sample.values[REASONS]) & sum(FAULTS))


def _share(samples: list[Sample]) -> float:
    return sum(map(_is_throttled, samples)) / len(samples) if samples else 0.0


def _reasons(samples: list[Sample]) -> list[str]:
    seen = [int(sample.values[REASONS]) for sample in samples]
    return [name for bit, name in FAULTS.items() if any(bits & bit for bits in seen)]


def _cost(samples: list[Sample], of_all: list[Sample]) -> Figure:
    """Return the share of the time that lower clocks take at most: as if all of a step went with the SM clock."""
    free = [s.values[CLOCK] for s in of_all if CLOCK in s.values and not _is_throttled(s)]
    held = [s.values[CLOCK] for s in samples if CLOCK in s.values and _is_throttled(s)]
    if not free or not held:
        return stats.unknown("ratio", "no GPU of this run ran at its full clock while it was measured")
    slower = max(0.0, 1 - median(held) / median(free))
    return stats.mean_interval([slower * _is_throttled(sample) for sample in samples], "ratio")


def _clock_words(samples: list[Sample]) -> tuple[str, ...]:
    held = [s.values[CLOCK] for s in samples if CLOCK in s.values and _is_throttled(s)]
    return (f"its SM clock is then {units.quantity(median(held), 'MHz')}",) if held else ()


RULE = Rule(
    title="Throttling",
    what="A GPU lowers its clocks because it is too hot or its power supply cannot keep up.",
    why="Kernels take longer in proportion, on all ranks that wait for this one, too.",
    how="From NVML, once a second while something is measured: the reasons for lowered clocks, and the SM clock with "
    "and without them. The power cap alone is usual under load and is not counted.",
    remedy="Better cooling or power; figures taken meanwhile should not be compared with others.",
    verified=False,
    check=_check,
)
