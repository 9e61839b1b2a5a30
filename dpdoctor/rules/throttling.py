"""throttling: a GPU runs slower than it could, because it is too hot or gets too little power."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.rules.rule import CannotTell, Rule, Said, faster_without, severity


def _check(facts: ModeFacts) -> Said:
    found = facts.throttled
    if found is None or isinstance(found, str):
        return CannotTell(reason=found) if found is not None else None
    cost = found.cost
    clock = f"its SM clock is then {units.quantity(found.clock_mhz, 'MHz')}" if found.clock_mhz is not None else None
    return Finding(
        rule="throttling",
        mode=facts.name,
        severity=("warning" if cost.value is None else severity(cost.value)) if found.costs else "info",
        status="inferred",
        title=found.words,
        cost=cost,
        evidence=(
            f"{units.share(found.share)} of {units.count(found.num_readings, 'reading')} name a reason: "
            + ", ".join(found.reasons),
            *([clock] if clock else []),
        ),
        cause=None,
        remedy="cool the machine and look at its power supply; nothing in the script mends this, and figures of this "
        "run should not be compared with another's",
        speedup=faster_without(cost) if cost.value is not None else None,
        speedup_basis="at most",
    )


RULE = Rule(
    name="throttling",
    title="Throttling",
    what="A GPU lowers its clocks because it is too hot or its power supply cannot keep up.",
    why="Kernels take longer in proportion, on all ranks that wait for this one, too.",
    how="From NVML, once a second while something is measured: the reasons for lowered clocks, and the SM clock with "
    "and without them. The power cap alone is usual under load and is not counted.",
    remedy="Better cooling or power; figures taken meanwhile should not be compared with others.",
    verified=False,
    check=_check,
)
