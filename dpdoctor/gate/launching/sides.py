"""Launches the script of a checkout and reads what it measured.

The launcher is called in this process, as `dpdoctor profile` does: ranks are fresh processes either way, this one never
imports torch, and one dpdoctor measures both sides, whatever the checkouts hold. Each side is a run directory of its
own, which `dpdoctor report` and `dpdoctor compare` read like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdoctor import rundir
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.analyse import analyse
from dpdoctor.gate.evidence.comparable import of_a_pair, unsound
from dpdoctor.gate.evidence.recorded import RecordedMode, recorded_mode
from dpdoctor.gate.launching.alternate import Measured
from dpdoctor.gate.launching.imports import own_imports
from dpdoctor.gate.model import SIDES, Refusal, Side, SideName
from dpdoctor.launch import launcher
from dpdoctor.launch.progress import Progress
from dpdoctor.records import Launch, Run
from dpdoctor.rules import diagnosed
from dpdoctor.spec import RunHeader, RunSpec

# Where the pair goes that is discarded: beside the sides, which hold only what may count.
DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """One side.

    Attributes:
        label: what people call it.
        spec: what is launched.
        header: goes with it, without secrets.
        import_roots: directories of the checkout whose packages it must import before others of the same name.
    """

    label: str
    spec: RunSpec
    header: RunHeader
    import_roots: tuple[str, ...] = ()

    def changed(self, **fields: Any) -> Checkout:
        """Return the same with other fields of its RunSpec; not for such as hold secrets."""
        return dataclasses.replace(
            self,
            spec=dataclasses.replace(self.spec, **fields),
            header=dataclasses.replace(self.header, spec=dataclasses.replace(self.header.spec, **fields)),
        )

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the names of the modes that are launched."""
        return tuple(mode.name for mode in self.spec.modes)

    def side(self) -> Side:
        """Return what a result says of this side."""
        return Side(label=self.label, command=self.header.command, fingerprint=self.header.fingerprint)


def launch(directory: Path, checkout: Checkout, number: int, progress: Progress) -> Run | None:
    """Launch all modes of a checkout for the n-th time and return that launch alone; None: Ctrl-C ended it.

    Raises:
        OutputError: the directory cannot be written.
    """
    if not directory.exists():
        launcher.create(directory, checkout.header)
    with own_imports(checkout.spec.cwd, checkout.import_roots):
        records = launcher.launch_once(directory, checkout.spec, number, progress)
    if records[-1].status == "interrupted":
        return None
    launches: dict[str, tuple[Launch, ...]] = {
        name: (rundir.read_launch(rundir.launch_dir(directory, name, number), name, number),) for name in checkout.modes
    }
    return Run(path=directory, header=checkout.header, modes=launches)


class Launches:
    """Launches either side for the n-th time, of at most `most`, into a directory below `root`."""

    def __init__(self, root: Path, checkouts: Mapping[SideName, Checkout], progress: Progress, *, most: int) -> None:
        self._root = root
        self._checkouts = {side: checkout.changed(repeat=most) for side, checkout in checkouts.items()}
        self._progress = progress
        self._seen: dict[SideName, dict[str, RecordedMode]] = {}

    def __call__(self, side: SideName, number: int) -> Measured:
        """Launch a side; number 0 is the launch that is discarded."""
        checkout = self._checkouts[side]
        if number:
            run = launch(self._root / side, checkout, number, self._progress)
        else:
            run = launch(self._root / DISCARDED / side, checkout.changed(repeat=1), 1, self._progress)
        return Measured(interrupted=True) if run is None else self._measured(side, run)

    def analysis(self, side: SideName, numbers: Collection[int]) -> Diagnosis:
        """Return the figures of these launches of a side, diagnosed."""
        run = rundir.read(self._root / side)
        modes = {name: tuple(one for one in found if one.record.launch in numbers) for name, found in run.modes.items()}
        return diagnosed(dataclasses.replace(run, modes=modes))

    def _measured(self, side: SideName, run: Run) -> Measured:
        analysis = analyse(run)
        modes = analysis.summary.modes
        found = {name: recorded_mode(analysis.run, name, summary) for name, summary in modes.items()}
        self._seen[side] = found
        reasons = [f"{name}: {reason}" for name, mode in found.items() for reason in mode.disturbed]
        return Measured(
            seconds={name: mode.seconds[0] for name, mode in found.items() if mode.seconds},
            disturbed="; ".join(reasons) or None,
            refusals=(*_unsound(side, found), *self._unlike()),
        )

    def _unlike(self) -> tuple[Refusal, ...]:
        """Return why the last launches of both sides are not the same work."""
        if len(self._seen) < len(SIDES):
            return ()
        base, head = (self._seen[side] for side in SIDES)
        return tuple(refusal for mode in base for refusal in of_a_pair(mode, base[mode], head[mode]))


def _unsound(side: SideName, found: Mapping[str, RecordedMode]) -> tuple[Refusal, ...]:
    """Return why a launch is no evidence; one that was only disturbed can be replaced."""
    sound = {name: dataclasses.replace(mode, disturbed=()) for name, mode in found.items()}
    return tuple(refusal for name, mode in sound.items() for refusal in unsound(side, name, mode))
