"""A launch with what is read from its records again and again: its windows and its traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.base.windows import MEASURE, Key, Window, measured, without_edges
from dpdoctor.records import FULL, Launch, Run


class LaunchFacts(Launch, frozen=True, dict=True):
    """A launch of which each fact is found once, when it is first asked for."""

    @classmethod
    def of(cls, launch: Launch) -> LaunchFacts:
        """Return the launch with its facts; the same object where it has them already."""
        if isinstance(launch, LaunchFacts):
            return launch
        return cls(record=launch.record, ranks=launch.ranks, samples=launch.samples, traced=launch.traced)

    @cached_property
    def on_gpu(self) -> bool:
        """Return whether its ranks may compute on GPUs, behind their hosts' backs."""
        return any(rank.record is not None and rank.record.device_type == "cuda" for rank in self.ranks)

    @cached_property
    def _windows(self) -> Mapping[Key, tuple[Window, ...]]:
        return measured(self)

    @cached_property
    def _steady(self) -> Mapping[Key, tuple[Window, ...]]:
        return without_edges(self._windows) if self.on_gpu else self._windows

    @cached_property
    def edges_are_steady(self) -> bool:
        """Return whether steps in which an epoch began or an evaluation ran are among the steady ones: most are such
        or, on a GPU, no full window was without.
        """
        return any(step.epoch_edge for window in self.windows() for rank in window.ranks for step in rank.steady)

    @property
    def is_taken_whole(self) -> bool:
        """Return whether its windows are those of a GPU that all have an edge, though most steps are none."""
        found = self._windows.get((MEASURE, FULL), ())
        return self.on_gpu and bool(found) and all(window.has_edge for window in found)

    @cached_property
    def _skipped(self) -> frozenset[str]:
        """Return the ablations that a rank did not run, not to their end, or whose proof did not hold."""
        records = [rank.record for rank in self.ranks if rank.record]
        return frozenset(one.name for record in records for one in record.ablations if one.skipped)

    def windows(self, ablation: str = FULL, *, kind: str = MEASURE, with_edges: bool = False) -> tuple[Window, ...]:
        """Return the complete windows of a kind in which an ablation ran; FULL: in which none did.

        What was skipped on one rank has none: there, some rank trained otherwise than the ablation's name says. Those
        of GPUs have no edge, unless that is usual or they are asked for `with_edges`: what one takes the device is not
        known.
        """
        found = self._windows if with_edges else self._steady
        return () if ablation in self._skipped else found.get((kind, ablation), ())

    @cached_property
    def traces(self) -> Traces:
        """Return the traces of its ranks."""
        return Traces(tuple(rank.digest for rank in self.ranks if rank.digest))


def with_facts(run: Run) -> Run:
    """Return the run with the facts of its launches, which whoever reads it shares."""
    return replace(
        run,
        modes={name: every(launches) for name, launches in run.modes.items()},
        bare=every(run.bare),
        watched=every(run.watched),
        trials={name: LaunchFacts.of(launch) for name, launch in run.trials.items()},
    )


def every(launches: Iterable[Launch]) -> tuple[LaunchFacts, ...]:
    """Return the launches with their facts."""
    return tuple(map(LaunchFacts.of, launches))


def of_one_kind(launches: Iterable[Launch]) -> tuple[LaunchFacts, ...]:
    """Return the launches of a mode whose steady steps are of one kind: where some hold no edges, those that hold some
    are left out.
    """
    found = every(launches)
    without = tuple(launch for launch in found if not launch.edges_are_steady)
    return without if any(launch.windows() for launch in without if launch.record.status != "failed") else found


def shown(launches: Sequence[Launch]) -> LaunchFacts:
    """Return the launch that speaks for the mode: the first that went wrong, as a mode is ok when all of them are."""
    wrong = next((launch for launch in launches if launch.record.status != "ok"), None)
    return of_one_kind(launches)[0] if wrong is None else LaunchFacts.of(wrong)
