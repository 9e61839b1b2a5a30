"""What dpdoctor said of a run, read from its run.json alone: whoever reads does not know what was planted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdoctor import rundir

VERDICTS = "verdicts.json"
# Half of a 95 % interval, in standard errors.
HALF_WIDTH = 1.96
# Trace and arm agree within this share of a step, or within so many standard errors of their difference.
TOLERANCE = 0.05
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A finding that calls for a change: refuted ones and mere facts are left out. `share` is its cost."""

    rule: str
    severity: str
    of: str
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One share of a step as it was seen, and as the arm that removes it says."""

    what: str
    seen: float
    gained: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether both say the same."""
        return abs(self.seen - self.gained) <= self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeVerdict:
    """One mode: how it ended, its findings, most costly first, and its agreements. `step_s` None: unknown.

    `removable_comm` and `removable_input` are what the arms say, as shares of a step; None: they did not run.
    """

    status: str
    step_s: float | None
    named: tuple[Named, ...]
    agreements: tuple[Agreement, ...]
    removable_comm: float | None
    removable_input: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One run. `error` is what went wrong with it; None: nothing."""

    folder: str
    modes: dict[str, ModeVerdict]
    error: str | None = None


def read(folder: Path, error: str | None) -> Verdict:
    """Return what the run in a folder says; no modes where it left no run.json."""
    path = folder / rundir.SUMMARY
    if not path.exists():
        return Verdict(folder=folder.name, modes={}, error=error or "no run.json")
    summary = json.loads(path.read_text())
    modes = {name: _mode(name, mode, summary["findings"]) for name, mode in summary["modes"].items()}
    return Verdict(folder=folder.name, modes=modes, error=error)


def _mode(name: str, mode: dict[str, Any], findings: list[dict[str, Any]]) -> ModeVerdict:
    named = (
        Named(rule=found["rule"], severity=found["severity"], of=found["of"], share=found["cost"]["value"])
        for found in findings
        if found["mode"] == name and found["status"] != "refuted" and found["severity"] != "info"
    )
    return ModeVerdict(
        status=mode["status"],
        step_s=mode["step"]["value"],
        named=tuple(named),
        agreements=tuple(_agreements(mode)),
        removable_comm=_gained(mode, "no_comm"),
        removable_input=_gained(mode, "cached_batches"),
    )


def _gained(mode: dict[str, Any], arm: str) -> float | None:
    return mode["arms"][arm]["share"]["value"] if arm in mode["arms"] else None


def _agreements(mode: dict[str, Any]) -> Iterator[Agreement]:
    """Yield the pairs of which both sides are known."""
    budget = mode["budget"]
    pairs = [("data_wait", mode["phases"]["data_wait"], mode["step"], "cached_batches")]
    if budget is not None:
        pairs.append(("exposed_comm", budget["exposed_comm"], budget["step"], "no_comm"))
    for what, part, step, arm in pairs:
        gained = _gained(mode, arm)
        if gained is None or part["value"] is None or not step["value"]:
            continue
        error = (_standard_error(part, step["value"]) ** 2 + _standard_error(mode["arms"][arm]["share"], 1) ** 2) ** 0.5
        allowed = max(TOLERANCE, STANDARD_ERRORS * error)
        yield Agreement(what=what, seen=part["value"] / step["value"], gained=gained, allowed=allowed)


def _standard_error(figure: dict[str, Any], of: float) -> float:
    """Return the standard error of a figure as a share of `of`; 0 where it has no interval."""
    if figure["low"] is None or figure["high"] is None:
        return 0.0
    return (figure["high"] - figure["low"]) / (2 * HALF_WIDTH * of)
