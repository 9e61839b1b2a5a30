"""The launches of a run, and the zero of their time axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from dpdoctor.analysis import Diagnosis, Launch
from dpdoctor.report.blocks import Block, Fold, OfMode
from dpdoctor.report.text import mode_label


class NamedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch with its mode and the title it is shown under."""

    mode: str
    title: str
    launch: Launch

    @property
    def origin_ns(self) -> int:
        """Return the moment that time axes begin at: the launch, or its earliest record where that is unknown."""
        if self.launch.record.begin_ns:
            return self.launch.record.begin_ns
        steps = [step.begin_ns for rank in self.launch.ranks for step in rank.steps]
        samples = [sample.at_ns for sample in self.launch.samples]
        return min(steps + samples, default=0)


def by_launch(analysis: Diagnosis, build: Callable[[NamedLaunch], Iterable[Block]]) -> list[OfMode]:
    """Return by mode what is built of its first launch, and behind a fold each what is built of the others."""
    found: dict[str, list[Block]] = {}
    for named in launches(analysis):
        blocks = tuple(build(named))
        of_mode = found.setdefault(named.mode, [])
        of_mode += blocks if named.launch.record.launch == 1 else (Fold(title=named.title, blocks=blocks),)
    return [OfMode(mode=mode, blocks=tuple(blocks)) for mode, blocks in found.items()]


def launches(analysis: Diagnosis) -> Iterator[NamedLaunch]:
    """Yield every launch of every mode, in the order of the run."""
    for mode, found in analysis.run.modes.items():
        for launch in found:
            label = mode_label(mode)
            title = label if len(found) == 1 else f"{label}, launch {launch.record.launch} of {len(found)}"
            yield NamedLaunch(mode=mode, title=title, launch=launch)
