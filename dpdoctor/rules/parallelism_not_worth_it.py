"""parallelism_not_worth_it: several devices train slower than one."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts
from dpdoctor.analysis.waterfall import told_apart
from dpdoctor.analysis.weighing import SMALL, main_part
from dpdoctor.rules.rule import Rule, faster_without, severity

# What the terms of the waterfall are, in words.
TERMS = {
    "data_loading": "waiting for data",
    "transfer": "communication that nothing hides",
    "slower_ranks": "waiting for slower ranks",
    "slower_compute": "computing slower beside communication or on shared cores",
    "overhead": "the mode's own work",
    "other": "what no term explains",
}
SAME_SAMPLES = "all ranks train on the same samples"
TO_SHARE = "train on one device until each rank has samples of its own"
TO_MEND = (
    "train on one device until what takes the time is mended; a larger batch per device shrinks what is paid per step"
)


def _check(facts: ModeFacts) -> Finding | None:
    speedup = facts.mode.speedup
    if facts.mode.num_devices < 2 and facts.mode.world_size < 2:
        return None
    if speedup.value is None or speedup.high is None or speedup.high >= 1:
        return None
    cost = _lost(speedup)
    assert cost.value is not None
    if cost.value < SMALL:
        return None
    parts = _parts(facts)
    cause = main_part(parts, sum(value for value in parts.values() if value > 0))
    conversion = facts.mode.conversion
    is_same = conversion is not None and conversion.same_samples and not facts.may_split_model
    devices = units.count(max(facts.mode.num_devices, facts.mode.world_size), "device")
    return Finding(
        rule="parallelism_not_worth_it",
        mode=facts.name,
        severity=severity(cost.value),
        status="confirmed",
        title=f"{devices} train slower than one: {units.times(speedup.value)} of its throughput",
        cost=cost,
        evidence=tuple(_evidence(facts, parts, devices)),
        cause=SAME_SAMPLES if is_same else TERMS[cause] if cause is not None and cause != "other" else None,
        remedy=TO_SHARE if is_same else TO_MEND,
        short_remedy="train on one device",
        speedup=faster_without(cost),
        speedup_basis="measured",
    )


def _lost(speedup: Figure) -> Figure:
    """Return the share of the time that one device would not need for the same samples."""
    assert speedup.value is not None
    assert speedup.low is not None
    assert speedup.high is not None
    return Figure(
        value=1 - speedup.value,
        low=1 - speedup.high,
        high=1 - speedup.low,
        n=speedup.n,
        unit="ratio",
        scope=speedup.scope,
    )


def _parts(facts: ModeFacts) -> dict[str, float]:
    """Return the known terms of the waterfall, in seconds per step; empty without one."""
    waterfall = facts.mode.waterfall
    if waterfall is None:
        return {}
    return {name: figure.value for name, figure in told_apart(waterfall).items() if figure.value is not None}


def _evidence(facts: ModeFacts, parts: dict[str, float], devices: str) -> list[str]:
    rate, single = facts.mode.throughput.value, facts.baseline
    found = []
    if rate is not None and single is not None and single.throughput.value is not None:
        one = units.rate(single.throughput.value)
        found.append(f"{devices} together train {units.rate(rate)}, one alone {one}")
    else:
        found.append(f"the interval of the speedup lies below 1, up to {units.times(facts.mode.speedup.high or 0.0)}")
    least = SMALL * (facts.mode.step.value or 0.0)
    lost = sorted(((value, name) for name, value in parts.items() if value > least and name != "other"), reverse=True)
    found += [f"{TERMS[name]} takes {units.seconds(value)} per step" for value, name in lost[:2]]
    return found


RULE = Rule(
    name="parallelism_not_worth_it",
    title="Parallel training is slower than one device",
    what="Several devices together train fewer samples per second than one alone.",
    why="What the mode adds to each step, communication, copies, waiting, or less of the machine for each rank, costs "
    "more than the devices give.",
    how="The throughput over that of one device in the same run, its whole interval below 1; where ablations were run, "
    "the waterfall says which part takes the time.",
    remedy="One device, or a larger batch per device; then mend the largest part of the loss.",
    verified=True,
    check=_check,
)
