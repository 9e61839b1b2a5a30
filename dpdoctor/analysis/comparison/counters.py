"""What one step does, counted, in every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpdoctor.analysis.comparison.figures import fact
from dpdoctor.analysis.comparison.model import Fact, Value
from dpdoctor.records import Counters

# Counted of every step; a run of an older version does not know them.
_OF_EVERY_STEP = ("micro_batches", "allocations", "h2d_bytes", "graph_breaks")


def counter_facts(counters: Sequence[Counters | None]) -> tuple[Fact, ...]:
    """Return what `counter_values` has, of every run; None: nothing counted. What no run knows is left out."""
    counted = [None if found is None else counter_values(found) for found in counters]
    names = dict.fromkeys(name for found in counted if found for name in found)
    facts = (fact(name, [None if found is None else found.get(name, 0) for found in counted]) for name in names)
    return tuple(found for found in facts if any(value is not None for value in found.values))


def counter_values(counters: Counters) -> dict[str, Value]:
    """Return the counters by name: operators, calls and bytes of each collective, waits by call, inputs and the rest.

    A name that is not there counts what did not happen; None: it was not counted.
    """
    found: dict[str, Value] = {"operators": counters.operators}
    for operation, calls in counters.collectives.items():
        found |= {f"{operation}.count": calls.count, f"{operation}.bytes": calls.num_bytes}
    waits = Counter[str]()
    for sync in counters.syncs:
        waits[sync.call] += sync.count
    found |= {f"syncs.{call}": count for call, count in waits.items()}
    found |= {name: getattr(counters, name) for name in _OF_EVERY_STEP}
    return {**found, **_inputs(counters)}


def _inputs(counters: Counters) -> dict[str, Value]:
    kinds = (f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}" for tensor in counters.inputs)
    return {
        "inputs": ", ".join(kinds),
        "inputs.dtypes": ", ".join(tensor.dtype for tensor in counters.inputs),
        "inputs.bytes": sum(tensor.num_bytes for tensor in counters.inputs),
    }
