"""What moved in modes that regressed: phases and counters of all pairs, findings of one full launch of each side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpdoctor.analysis import Diagnosis
from dpdoctor.gate.launching.sides import Checkout, Launches
from dpdoctor.gate.model import SIDES, ModeResult, Moved, Pair, SideName
from dpdoctor.gate.moved import moved
from dpdoctor.launch.progress import Progress
from dpdoctor.spec import BASELINE, Recording

# Where the full launches go, below the gate's directory.
EXPLAINED = "explained"


def explained(
    results: Mapping[str, ModeResult], launches: Launches, full: Mapping[SideName, Diagnosis] | None
) -> dict[str, ModeResult]:
    """Return results with what moved in the modes that regressed; `full` None: there was no full launch of both."""
    regressed = [name for name, result in results.items() if result.outcome == "regressed"]
    if not regressed:
        return dict(results)
    numbers = _counting(results[regressed[0]].pairs)
    pairs = {side: launches.analysis(side, numbers) for side in SIDES}
    told = {name: _moved(name, pairs, full) for name in regressed}
    return {name: dataclasses.replace(result, moved=told.get(name, ())) for name, result in results.items()}


def full_launches(
    root: Path, checkouts: Mapping[SideName, Checkout], modes: Sequence[str], recording: Recording, progress: Progress
) -> dict[SideName, Diagnosis] | None:
    """Launch these modes of each side once more, with ablations and a trace, for what the rules find with them.

    Returns both analysed; None: one of them failed or was interrupted, and explains nothing.

    Raises:
        OutputError: the directory cannot be written.
    """
    only = {side: _only(checkout, modes).changed(recording=recording) for side, checkout in checkouts.items()}
    launches = Launches(root / EXPLAINED, only, progress, most=1)
    for side in SIDES:
        measured = launches(side, 1)
        if measured.refusals or measured.interrupted:
            return None
    return {side: launches.analysis(side, {1}) for side in SIDES}


def _only(checkout: Checkout, modes: Sequence[str]) -> Checkout:
    # The baseline tells other modes which parameters get no gradient.
    return checkout.changed(modes=tuple(mode for mode in checkout.spec.modes if mode.name in {*modes, BASELINE}))


def _counting(pairs: Sequence[Pair]) -> set[int]:
    return {number for number, pair in enumerate(pairs, 1) if pair.replaced is None}


def _moved(
    mode: str, pairs: Mapping[SideName, Diagnosis], full: Mapping[SideName, Diagnosis] | None
) -> tuple[Moved, ...]:
    of_pairs = moved(pairs["base"], pairs["head"], mode)
    if full is None:
        return of_pairs
    findings = [item for item in moved(full["base"], full["head"], mode) if item.kind == "finding"]
    return (*(item for item in of_pairs if item.kind != "finding"), *findings)
