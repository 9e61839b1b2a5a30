"""Cases for rules that read traces: ranks whose steps are all alike, in milliseconds, 100 of them a step."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dpdoctor.analysis import TRACE_MODE
from dpdoctor.analysis.cross_rank import compare_ranks
from dpdoctor.attribution.digesting import digest_file
from dpdoctor.digest import HOST, Calls, DeviceDigest, DeviceStep, Digest, Quantiles
from tests.builders import cases
from tests.builders.cases import Case, case_of
from tests.builders.documents import REAL
from tests.builders.specs import MS
from tests.builders.traced_runs import breakdown, trace_run

STEPS = 10
# One call: operation, bytes, length and exposed part in milliseconds.
Call = tuple[str, int, float, float]


def digest(
    rank: int = 0,
    *,
    world_size: int = 2,
    compute: int = 80,
    exposed: int = 0,
    hidden: int = 0,
    idle_by: Mapping[str, int] | None = None,
    calls: Sequence[Call] = (),
    gpu: bool = True,
    num_devices: int = 1,
    delay_us: float | None = 8,
    phases: Mapping[str, int] | None = None,
    **fields: Any,
) -> Digest:
    """Return a rank of STEPS steps that compute, communicate unhidden and beside compute, idle by cause and talk."""
    idle = dict(idle_by or {})
    of = breakdown(compute, exposed, idle=sum(idle.values()), comm=exposed + hidden)
    steps = tuple(
        DeviceStep(
            step=number,
            begin_ns=number * of.total_ns,
            end_ns=(number + 1) * of.total_ns,
            breakdown=of,
            idle_by={cause: ms * MS for cause, ms in idle.items()},
            phases_ns={name: ms * MS for name, ms in (phases or {}).items()},
        )
        for number in range(STEPS)
    )
    devices = tuple(
        DeviceDigest(
            index=index if gpu else HOST,
            name="GPU" if gpu else "CPU",
            begin_ns=0,
            whole=breakdown(STEPS * compute, STEPS * exposed, idle=STEPS * sum(idle.values()), comm=0),
            steps=steps,
            launch_delay=None
            if delay_us is None or not gpu
            else Quantiles(n=100, p50_ns=round(1000 * delay_us), p90_ns=90_000, max_ns=100_000),
            launches=1000,
        )
        for index in range(num_devices)
    )
    known: dict[str, Any] = {
        "source": f"rank{rank}.json",
        "rank": rank,
        "world_size": world_size,
        "backend": "nccl" if gpu else "gloo",
        "host": "node",
        "base_ns": 0,
        "has_device": gpu,
        "step_source": "ProfilerStep",
        "num_events": 1000,
        "devices": devices,
        "kernels": (),
        "operators": (),
        "collectives": (),
        "calls": all_calls(calls, of.total_ns),
    }
    return Digest(**{**known, **fields})


def all_calls(calls: Sequence[Call], step_ns: int) -> Calls:
    """Return the same calls, one after the other, in each of STEPS steps."""
    rows: list[tuple[str, int, int, int, int, int]] = []
    for number in range(STEPS):
        at = number * step_ns
        for operation, num_bytes, length, exposed in calls:
            end = at + round(length * MS)
            rows.append((operation, num_bytes, at, end, round(exposed * MS), number))
            at = end
    names = sorted({row[0] for row in rows})
    return Calls(
        names=("0", *names),
        causes=("compute",),
        operation=tuple(names.index(row[0]) + 1 for row in rows),
        group=(0,) * len(rows),
        seq=(-1,) * len(rows),
        num_bytes=tuple(row[1] for row in rows),
        begin_ns=tuple(row[2] for row in rows),
        end_ns=tuple(row[3] for row in rows),
        exposed_ns=tuple(row[4] for row in rows),
        step=tuple(row[5] for row in rows),
        segment_cause=(0,) * len(rows),
    )


def case(name: str, *digests: Digest, **fields: Any) -> Case:
    """Return a mode whose ranks left these traces; fields are of its summary, or of its ranks' records as `record`."""
    record = dict(fields.pop("record", {}))
    if digests and digests[0].has_device:
        record.setdefault("device", "cuda:0")
    of = cases.ranks(max(1, len(digests)), **record)
    found = [replace(rank, digest=one) for rank, one in zip(of, digests, strict=False)]
    made = cases.case(name, world_size=max(1, len(digests)), of=found or of, **fields)
    if not digests:
        return made
    return case_of(replace(made.analysis, cross_rank={name: compare_ranks(digests)}), name)


@functools.cache
def real(*names: str) -> Case:
    """Return what `analyze` makes of real traces beside the repository."""
    return case_of(trace_run(*(digest_file(REAL / name) for name in names)), TRACE_MODE)


def real_cases(**names: str) -> dict[str, Case]:
    """Return by what they show the cases of real traces; none where the folder is not beside this checkout."""
    return {shown: real(name) for shown, name in names.items()} if REAL.is_dir() else {}
