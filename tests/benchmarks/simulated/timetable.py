"""When which step of a simulated launch ends: all ranks leave a step together, as gradients are reduced in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

MS = 1_000_000
BEGIN_NS = 5_000_000_000
STARTUP_NS = 12_000 * MS
WARMUP_STEPS, PROOF_STEPS, TRACE_STEPS = 20, 2, 12
STEPS_PER_WINDOW = 6
STEPS_PER_EPOCH = 50
# The usual step by ablation.
STEP_MS = {"full": 100.0, "cached_batches": 88.0, "no_comm": 90.0, "no_data_no_comm": 78.0}
FIRST_STEP_MS, TRACED_MS, EDGE_MS, STALL_MS = 2_000.0, 115.0, 60.0, 300.0
# The number of the one step in which the whole job stands still: one of a full window.
STALLED_STEP = 74


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One step of all ranks; times in ns of the host's monotonic clock."""

    step: int
    window: int
    kind: str
    ablation: str
    round: int
    counted: bool
    epoch_edge: bool
    begin_ns: int
    end_ns: int


def timetable(num_steps: int, seed: int) -> list[Slot]:
    """Return a warm-up, the proof, rounds of windows of every ablation and the trace, in so many steps."""
    chance, now, found = random.Random(seed), BEGIN_NS + STARTUP_NS, []
    for step, (window, kind, ablation, round_, counted) in enumerate(_windows(num_steps), 1):
        edge = step % STEPS_PER_EPOCH == 1
        duration = _duration_ms(step, kind, ablation, edge) * chance.gauss(1, 0.01)
        end = now + round(duration * MS)
        found.append(
            Slot(
                step=step,
                window=window,
                kind=kind,
                ablation=ablation,
                round=round_,
                counted=counted,
                epoch_edge=edge,
                begin_ns=now,
                end_ns=end,
            )
        )
        now = end
    return found


def _duration_ms(step: int, kind: str, ablation: str, edge: bool) -> float:
    usual = TRACED_MS if kind == "trace" else STEP_MS[ablation]
    return (FIRST_STEP_MS if step == 1 else usual) + edge * EDGE_MS + (step == STALLED_STEP) * STALL_MS


def _windows(num_steps: int) -> Iterator[tuple[int, str, str, int, bool]]:
    """Yield (window, kind, ablation, round, counted) of each step; the first of a window is not counted."""
    measured = num_steps - WARMUP_STEPS - PROOF_STEPS - TRACE_STEPS
    if measured < STEPS_PER_WINDOW:
        raise ValueError(f"{num_steps} steps have no room for a measured window")
    yield from ((0, "warmup", "full", 0, True) for _ in range(WARMUP_STEPS))
    yield from ((1, "proof", "full", 0, True) for _ in range(PROOF_STEPS))
    ablations = list(STEP_MS)
    for place in range(measured):
        number, within = divmod(place, STEPS_PER_WINDOW)
        yield 2 + number, "measure", ablations[number % len(ablations)], number // len(ablations), within > 0
    last = 2 + -(-measured // STEPS_PER_WINDOW)
    yield from ((last, "trace", "full", 0, place > 0) for place in range(TRACE_STEPS))
