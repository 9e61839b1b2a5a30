"""Records small enough to work out on paper what analysis must say of them. Times are given in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.records import PHASES, Launch, LaunchRecord, Rank, RankRecord, Run, StepRecord, WindowRecord
from dpdoctor.spec import RunHeader
from tests.builders import specs as builders
from tests.builders.specs import MS


def step(ms: float = 100, **fields: Any) -> StepRecord:
    """Return a counted step of 32 samples in window 1, all of it spent in forward unless `phases_ms` says otherwise."""
    phases_ms = fields.pop("phases_ms", {"forward": ms})
    record = StepRecord(
        step=0,
        window=1,
        begin_ns=0,
        duration_ns=round(ms * MS),
        phases_ns=tuple(round(phases_ms.get(name, 0) * MS) for name in PHASES),
        samples_drawn=32,
        samples_entered=32,
        micro_batches=1,
        epoch_edge=False,
        counted=True,
    )
    return replace(record, **fields)


def window(ms: float, **fields: Any) -> WindowRecord:
    """Return a complete measured window of that length with nothing switched off."""
    record = WindowRecord(
        window=1,
        kind="measure",
        ablation="full",
        round=1,
        first_step=0,
        num_steps=0,
        begin_ns=5 * MS,
        end_ns=5 * MS + round(ms * MS),
        barrier_ns=0,
        complete=True,
    )
    return replace(record, **fields)


def rank(
    steps: Sequence[StepRecord], windows: Sequence[WindowRecord], *, index: int = 0, world_size: int = 1, **fields: Any
) -> Rank:
    """Return a rank that ended well; more fields of its RankRecord by keyword."""
    record = RankRecord(
        rank=index, world_size=world_size, pid=100 + index, host="box", device="cpu", backend="gloo", status="ok"
    )
    # As torch names a device: cpu, cuda:0.
    fields.setdefault("device_type", fields.get("device", "cpu").partition(":")[0])
    record = replace(record, **fields)
    return Rank(index=index, record=record, steps=tuple(steps), windows=tuple(windows), events=(), trace=None)


def even_rank(ms: float, *, num_steps: int = 4, num_windows: int = 1, **fields: Any) -> Rank:
    """Return a rank whose steps all last the same, in windows numbered from 1."""
    numbers = range(1, num_windows + 1)
    steps = [step(ms, window=number) for number in numbers for _ in range(num_steps)]
    return rank(steps, [window(ms * num_steps, window=number) for number in numbers], **fields)


def ranks_alone(*ms: Sequence[float | Mapping[str, float]], rounds: int = 3) -> list[Rank]:
    """Return a rank for each list of step times, whole or by phase, without communication; a full step lasts 100 ms."""
    of_ranks = [[taken if isinstance(taken, Mapping) else {"forward": taken} for taken in times] for times in ms]
    return [_rank_alone(index, times, rounds, len(ms)) for index, times in enumerate(of_ranks)]


def _rank_alone(index: int, times: Sequence[Mapping[str, float]], rounds: int, world_size: int) -> Rank:
    steps: list[StepRecord] = []
    windows = []
    for number in range(2 * rounds):
        own = times if number % 2 else [{"forward": 100.0}] * len(times)
        total = [sum(phases.values()) for phases in own]
        steps += [
            step(ms, step=len(steps) + place, window=number, phases_ms=own[place]) for place, ms in enumerate(total)
        ]
        ablation = "no_comm" if number % 2 else "full"
        windows.append(window(sum(total), window=number, ablation=ablation, round=number // 2))
    return rank(steps, windows, index=index, world_size=world_size)


def ahead(*windows_ms: tuple[float, float | None], num_steps: int = 10, **fields: Any) -> Rank:
    """Return a rank whose host queues each step in 2 ms, and then waits until its GPU is done with the window.

    Given of each window: how long it lasts, and what the host takes for its last step where that is an edge; else None.
    Windows and steps are numbered from 1.
    """
    steps, windows, at_ns = [], [], 0
    for number, (wall_ms, edge_ms) in enumerate(windows_ms, 1):
        windows.append(window(wall_ms, window=number, round=number, begin_ns=at_ns, end_ns=at_ns + round(wall_ms * MS)))
        began_ns = at_ns
        for place in range(1, num_steps + 1):
            is_edge = edge_ms is not None and place == num_steps
            phases_ms = {"data_wait": edge_ms - 2, "forward": 2} if is_edge else {"forward": 2}
            made = step(
                edge_ms if is_edge else 2,
                step=len(steps) + 1,
                window=number,
                begin_ns=began_ns,
                epoch_edge=is_edge,
                phases_ms=phases_ms,
            )
            steps.append(made)
            began_ns += made.duration_ns
        at_ns = windows[-1].end_ns
    return rank(steps, windows, device="cuda:0", **fields)


def launch(*ranks: Rank, mode: str = "single", number: int = 1, status: str = "ok", **fields: Any) -> LaunchFacts:
    """Return a launch of 10 s; more fields of its LaunchRecord by keyword."""
    fields = {"begin_ns": 0, "end_ns": 10_000 * MS, **fields}
    record = LaunchRecord(mode=mode, launch=number, status=status, **fields)
    return LaunchFacts.of(Launch(record=record, ranks=ranks, samples=()))


def run(modes: dict[str, Sequence[Launch]], world_sizes: dict[str, int] | None = None, **spec: Any) -> Run:
    """Return a run; a mode has one rank unless `world_sizes` says otherwise; more fields of the RunSpec by keyword."""
    sizes = {name: (world_sizes or {}).get(name, 1) for name in modes}
    built = builders.run({builders.mode_spec(name, size): modes[name] for name, size in sizes.items()})
    header = replace(built.header, spec=replace(built.header.spec, **spec))
    return replace(built, header=header)


def header(world_sizes: dict[str, int], **spec: Any) -> RunHeader:
    """Return the header of a run of these modes."""
    return run(dict.fromkeys(world_sizes, ()), world_sizes, **spec).header
