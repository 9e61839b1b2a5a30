"""What dpdoctor said of a run, read from its run.json alone: whoever reads does not know what was planted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdoctor import rundir

VERDICTS = "verdicts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A finding that calls for a change: refuted ones and mere facts are left out. `share` is its cost."""

    rule: str
    severity: str
    of: str
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One share of a step as it was seen, as the ablation that removes it says, and whether dpdoctor calls them the
    same.
    """

    ablation: str
    seen: float
    gained: float
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeVerdict:
    """One mode: how it ended, its findings, most costly first, and its cross-checks. `step_s` None: unknown."""

    status: str
    step_s: float | None
    named: tuple[Named, ...]
    checked: tuple[Checked, ...]


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
        Named(rule=found["rule"], severity=found["severity"], of=found["share_of"], share=found["cost"]["value"])
        for found in findings
        if found["mode"] == name and found["status"] != "refuted" and found["severity"] != "info"
    )
    checked = (
        Checked(
            ablation=one["ablation"], seen=one["observed"]["value"], gained=one["gain"]["value"], agrees=one["agrees"]
        )
        for one in mode["cross_checks"]
        if one["agrees"] is not None
    )
    return ModeVerdict(
        status=mode["status"],
        step_s=mode["step"]["value"],
        named=tuple(named),
        checked=tuple(checked),
    )
