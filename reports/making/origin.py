"""What the index says of a report: what it found, what was run, from which commit, on which machine and versions."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dpdoctor import units
from dpdoctor.analysis import RunSummary
from dpdoctor.report.text import mode_label
from dpdoctor.report.words import diagnosis, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """All of it as it is read."""

    what: str
    verdict: str
    finding: str
    command: str
    commit: str
    machine: str
    versions: str


def origin(summary: RunSummary, what: str, commit: str) -> Origin:
    """Return the origin of a run."""
    machine = summary.fingerprint
    gpus = ", ".join(gpu.name for gpu in machine.gpus) or "no GPU"
    packages = {"Python": machine.python, "dpdoctor": summary.dpdoctor, **machine.packages}
    return Origin(
        what=what,
        verdict=verdict.headline(summary).sentence,
        finding=_costliest(summary),
        command=shlex.join(summary.command),
        commit=commit,
        machine=f"{machine.host}: {machine.cpu or 'CPU unknown'}, {units.count(machine.cores, 'core')}, "
        f"{units.size(machine.memory_bytes)}, {gpus}, {machine.system}",
        versions=", ".join(f"{name} {version}" for name, version in packages.items()),
    )


def _costliest(summary: RunSummary) -> str:
    found = diagnosis.bottlenecks(summary)
    if not found:
        return "Nothing was found that would be worth a change."
    first = found[0][0]
    return f"{mode_label(first.mode)}: {first.title} ({first.status})."


def commit(repository: Path) -> str:
    """Return the commit that is checked out, and whether code or samples differ from it."""
    said = ["git", "-C", str(repository)]
    head = subprocess.run([*said, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(
        [*said, "status", "--porcelain", "--", "dpdoctor", "samples"], check=True, capture_output=True, text=True
    ).stdout
    return f"{head}, with changes that are not committed" if changed else head
