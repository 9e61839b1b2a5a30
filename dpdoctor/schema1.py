"""Files of schema 1, which dpdoctor wrote up to version 0.1: their keys, and what schema 2 calls them.

Schema 2 differs in names alone, so that what was recorded or saved before is still read. RENAMES is all there is to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

SCHEMA_1 = 1

# For each record, by the name of its class: its keys in schema 1, and in schema 2.
RENAMES: dict[str, dict[str, str]] = {
    # header.json
    "Recording": {"arms": "ablations"},
    # launch.json, rank.json, windows.jsonl
    "LaunchRecord": {"changed": "files_changed", "refused": "files_refused"},
    "RankRecord": {"adoption": "conversion", "arms": "ablations", "phase": "stage"},
    "WindowRecord": {"arm": "ablation", "core_pace_ns": "core_benchmark_ns"},
    "Conversion": {"units": "modules"},
    # digest.json
    "Digest": {"not_judged": "not_measured"},
    "DeviceStep": {"budget": "breakdown", "handling_by": "comm_host_ns"},
    # run.json, and what a baseline keeps of it
    "RunSummary": {"not_judged": "inconclusive", "pace": "caveat"},
    "ModeSummary": {
        "adoption": "conversion",
        "arms": "ablations",
        "budget": "breakdown",
        "changed": "files_changed",
        "core_pace": "core_benchmark",
        "no_trace": "trace_reason",
        "observer_cost": "observer_overhead",
        "own": "native",
        "profiler_cost": "profiler_overhead",
        "refused": "files_refused",
        "throughput_with_edges": "throughput_all_steps",
        "wall": "file_protection",
    },
    "RankSummary": {"phase": "stage"},
    "CrossCheck": {"allowed": "tolerance", "arm": "ablation", "gained": "gain", "seen": "observed"},
    "Finding": {"gain": "speedup_basis", "of": "share_of", "predicted": "speedup", "short": "short_remedy"},
    "LoaderSummary": {
        "built": "built_at",
        "control": "baseline_same_workers",
        "edge": "epoch_start",
        "number": "index",
        "ready": "ready_batches",
        "receive": "transfer",
        "slow": "slow_fetches",
    },
    "SlowFetches": {"of": "total", "usual": "usual_seconds"},
    # The terms of a waterfall, keys of two of its fields.
    "Waterfall": {"contention": "slower_compute", "input": "data_loading", "peers": "slower_ranks"},
}


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return what reads values of `kind` from JSON that was written in schema 1.

    It raises msgspec.DecodeError where that is no JSON, or not of this shape.
    """
    of_kind = inspect.type_info(kind)
    return lambda data: msgspec.convert(_renamed(msgspec.json.decode(data), of_kind), kind, str_keys=True)


def _renamed(value: Any, kind: inspect.Type) -> Any:
    """Return a decoded value in which records of the type have the keys of schema 2."""
    if isinstance(kind, inspect.UnionType):
        fitting = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _renamed(value, fitting[0]) if value is not None and len(fitting) == 1 else value
    if isinstance(value, list) and isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return [_renamed(one, kind.item_type) for one in value]
    if isinstance(value, dict) and isinstance(kind, inspect.DictType):
        return {key: _renamed(one, kind.value_type) for key, one in value.items()}
    if isinstance(value, dict) and isinstance(kind, inspect.StructType):
        return _record(value, kind)
    return value


def _record(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    new = RENAMES.get(kind.cls.__name__, {})
    types = {field.encode_name: field.type for field in kind.fields}
    found = {new.get(key, key): one for key, one in value.items()}
    if kind.cls.__name__ == "Waterfall":
        found |= {name: {new.get(key, key): one for key, one in found[name].items()} for name in ("terms", "sources")}
    if "schema" in found:
        found["schema"] = SCHEMA_1 + 1
    return {key: _renamed(one, types[key]) if key in types else one for key, one in found.items()}
