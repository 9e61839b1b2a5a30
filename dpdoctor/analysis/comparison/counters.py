"""What one step does, counted, in every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpdoctor.analysis.comparison.figures import fact
from dpdoctor.analysis.comparison.model import Fact, Value
from dpdoctor.records import Counters


def counter_facts(counters: Sequence[Counters | None]) -> tuple[Fact, ...]:
    """Return operators, calls and bytes of each collective, waits for the device and inputs; None: nothing counted."""
    counted = [None if found is None else _values(found) for found in counters]
    names = dict.fromkeys(name for found in counted if found for name in found)
    return tuple(fact(name, [None if found is None else found.get(name, 0) for found in counted]) for name in names)


def _values(counters: Counters) -> dict[str, Value]:
    """Return the counters by name; what is not among them did not happen."""
    found: dict[str, Value] = {"operators": counters.operators}
    for operation, calls in counters.collectives.items():
        found |= {f"{operation}.count": calls.count, f"{operation}.bytes": calls.num_bytes}
    waits = Counter[str]()
    for sync in counters.syncs:
        waits[sync.call] += sync.count
    inputs = (f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}" for tensor in counters.inputs)
    return {**found, **{f"syncs.{call}": count for call, count in waits.items()}, "inputs": ", ".join(inputs)}
