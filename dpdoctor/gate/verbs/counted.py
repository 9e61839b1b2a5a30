"""The exact tier: what one step does, counted in one launch of each side.

Base is launched once more, with another seed: counters in which it differs from itself vary by nature. So is head where
it did not pass, alike: what it does not do again is no change of the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpdoctor.analysis import ModeSummary
from dpdoctor.analysis.analyse import analyse
from dpdoctor.gate.exact import compare
from dpdoctor.gate.launching.sides import Checkout, launch
from dpdoctor.gate.model import ExactResult, GateResult
from dpdoctor.gate.outcome import result
from dpdoctor.launch.interruption import heeding
from dpdoctor.launch.progress import Progress

# A seed is 32 bits wide.
SEEDS = 2**32
Modes = Mapping[str, ModeSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedGate:
    """What is asked; `root` is the directory of all launches."""

    root: Path
    base: Checkout
    head: Checkout


def gate(wanted: CountedGate, progress: Progress) -> GateResult:
    """Return what one step of head does against one of base; Ctrl-C, or SIGTERM, ends it without a judgement.

    Raises:
        OutputError: the directory of a launch cannot be written.
    """
    sides = wanted.base.side(), wanted.head.side()
    with heeding():
        try:
            return result("exact", *sides, exact=_judged(wanted, progress))
        except KeyboardInterrupt:
            return result("exact", *sides, remarks=["Interrupted; nothing was judged"])


def _judged(wanted: CountedGate, progress: Progress) -> dict[str, ExactResult]:
    base = _counted(wanted, "base", wanted.base, progress)
    head = _counted(wanted, "head", wanted.head, progress)
    another_seed = wanted.base.changed(seed=(wanted.base.spec.seed + 1) % SEEDS)
    base_again = _counted(wanted, "base-again", another_seed, progress)
    found = {name: compare(base[name], head[name], base_again[name]) for name in base}
    if all(one.outcome == "pass" for one in found.values()):
        return found
    head_again = _counted(wanted, "head-again", wanted.head, progress)
    return {name: compare(base[name], head[name], base_again[name], head_again[name]) for name in base}


def _counted(wanted: CountedGate, name: str, checkout: Checkout, progress: Progress) -> Modes:
    """Return the modes of one launch, by name; KeyboardInterrupt where it was interrupted."""
    run = launch(wanted.root / name, checkout, 1, progress)
    if run is None:
        raise KeyboardInterrupt
    return analyse(run).summary.modes
