"""The counters of one mode by name: their values, what they may differ by, and how a person reads them."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis.base.summary import ModeSummary
from dpdoctor.analysis.comparison import Value, counter_values
from dpdoctor.gate.model import Difference

PEAK_MEMORY = "peak_memory_bytes"
# The most that a process held on the host also depends on when memory was given back: a few percent between launches.
HOST_MEMORY_ALLOWED = 0.10
# torch's allocator takes a GPU's memory in whole segments, and streams decide when a block is free again.
DEVICE_MEMORY_ALLOWED = 0.02

_WORDS = {
    "operators": "operator calls",
    "micro_batches": "training passes per step",
    "allocations": "allocations",
    "h2d_bytes": "bytes copied to the device",
    "graph_breaks": "graph breaks",
    "inputs": "input batch",
    "inputs.dtypes": "types of the input batch",
    "inputs.bytes": "bytes of the input batch",
    PEAK_MEMORY: "peak memory",
}
_KINDS = {"count": "calls of {}", "bytes": "bytes of {}"}
_SYNCS = "syncs"
# What other counters entail comes after them.
_ENTAILED = ("allocations", "operators", PEAK_MEMORY)


def values(mode: ModeSummary) -> dict[str, Value]:
    """Return what one step of a mode does, and its peak memory in bytes; what is not there did not happen.

    Raises:
        ValueError: no step of the mode was counted.
    """
    if mode.counters is None:
        raise ValueError("no step of this mode was counted")
    known = [rank.peak_memory_bytes for rank in mode.ranks if rank.peak_memory_bytes is not None]
    return {**counter_values(mode.counters), PEAK_MEMORY: max(known, default=None)}


def allowed(name: str, mode: ModeSummary) -> float:
    """Return the relative difference that means nothing: 0 for all but peak memory."""
    if name != PEAK_MEMORY:
        return 0.0
    on_host = all(rank.device_type == "cpu" for rank in mode.ranks)
    return HOST_MEMORY_ALLOWED if on_host else DEVICE_MEMORY_ALLOWED


def place(name: str) -> int:
    """Return the order in which counters are told: what says most of the cause comes first."""
    return _ENTAILED.index(name) + 1 if name in _ENTAILED else 0


def sync_call(name: str) -> str:
    """Return the call that a counter of waits is about; empty: it is another counter."""
    kind, _, call = name.partition(".")
    return call if kind == _SYNCS else ""


def words(name: str) -> str:
    """Return the name of a counter as people say it: `all_reduce.count` is `calls of all_reduce`."""
    if name in _WORDS:
        return _WORDS[name]
    if call := sync_call(name):
        return f"waits by {call}"
    what, _, kind = name.rpartition(".")
    return _KINDS[kind].format(what) if kind in _KINDS else name


def value_text(name: str, value: Value) -> str:
    """Return a value of a counter: exactly, but for peak memory."""
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value or "none"
    return units.size(value) if name == PEAK_MEMORY else units.whole(value)


def told(item: Difference) -> str:
    """Return what a counter is and what it was: `calls of all_reduce 3 instead of 2`."""
    head, base = (value_text(item.name, value) for value in (item.head, item.base))
    return f"{words(item.name)} {head} instead of {base}"
