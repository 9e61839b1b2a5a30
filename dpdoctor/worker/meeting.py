"""What the ranks tell each other, of the parts of each, at the end of a segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import MemoryRecord
from dpdoctor.worker.ablation_runner import AblationRunner
from dpdoctor.worker.ablations._hooks import Hooks
from dpdoctor.worker.base.agreement import Agreement
from dpdoctor.worker.base.director import Director, Facts
from dpdoctor.worker.base.mode import Mode
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.ending import Ending
from dpdoctor.worker.report import Report
from dpdoctor.worker.setup import Seeding
from dpdoctor.worker.timing.optimizers import StepCounter
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder, StepLog
from dpdoctor.worker.wrap.entered import Labels, are_one, are_same, are_same_labels, copies
from dpdoctor.worker.wrap.redirect import Watch
from dpdoctor.worker.wrap.wrapping import Wrapping

DRAWN_APART = (
    "ranks draw different batches and may train on the same samples: a sampler goes on to draw from the global random "
    "state, which differs between ranks. Throughput is not affected; to distribute it, give it a generator of its own"
)
DRAWN_ALIKE = (
    "the script's samplers draw the same indices on all ranks, and other tensors enter the models: unless each rank "
    "has data of its own, ranks share samples, each of which the throughput counts once for every rank"
)
APART = (
    "in the first steps all ranks drew the same samples; random numbers that the script does not seed with a number of "
    "its own ({}) were alike on all ranks only by dpdoctor's seed, and are drawn apart since, as processes of the "
    "script would. What was drawn before, such as the order of an epoch, stayed the same"
)
ONE_BATCH = (
    "every step of every rank trains on one and the same batch. Where it stands in for others, as made-up data do, go "
    "by the time of a step, or make the batches in the loop"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the conductor conducts.

    `director` decides on rank 0 and is None on the others; `comm_kernels` is that of Recording;
    `memory` tells what it holds at the end of the window of a number; None: nobody looks.
    """

    mode: Mode
    directory: Path
    clock: Callable[[], int]
    phases: PhaseClock
    steplog: StepLog
    counter: StepCounter
    watch: Watch
    wrapping: Wrapping
    loaders: Loaders
    recorder: Recorder
    heartbeat: Heartbeat
    agreement: Agreement
    ablation_runner: AblationRunner
    director: Director | None
    ending: Ending
    report: Report
    seeding: Seeding
    hooks: Hooks
    comm_kernels: str | None = None
    memory: Callable[[int], MemoryRecord] | None = None


class _Told(NamedTuple):
    """What one rank tells the others; flags are 0 or 1. `labels` and `entered` are what those of that name told.

    `seeded`: a digest of what each step drew before its forward from generators that the script seeds; 0: nothing.
    `given`: of all that loaders gave in the steps that `entered` is of; 0: nothing.
    """

    step_ns: int
    prefetch: int
    reference_changed: int
    elapsed_ns: int
    num_workers: int
    period: int
    num_drawn: int
    drawn: int
    lost_ns: int
    reads_whole: int
    seeded: int
    given: int
    labels: list[int]
    entered: list[int]

    def numbers(self) -> list[int]:
        """Return all of it in one list, as ranks exchange it."""
        *alone, labels, entered = self
        return [*alone, *labels, *entered]

    def alike(self, numbers: Sequence[int]) -> _Told:
        """Return what another rank told in such a list."""
        first = len(self) - 2
        entered = first + len(self.labels)
        return _Told._make([*numbers[:first], [*numbers[first:entered]], [*numbers[entered:]]])


def meet(parts: Parts, step_ns: int, *, warming: bool) -> tuple[Facts, int]:
    """Return what all ranks found, and how long this one waited for the others in ns.

    `step_ns` is this rank's usual step; `warming`: the optimizer that defines a step may still change.
    """
    if (why := parts.loaders.trained_in_vain()) is not None:
        parts.ending.stop("failed", why)
    changed = parts.counter.elect() if warming else False
    now = parts.clock()
    mine = _mine(parts, step_ns, changed=changed, now=now)
    everyone = [mine.alike(numbers) for numbers in parts.agreement.gather(mine.numbers())]
    # Ranks that fetched differently far ahead cannot be compared.
    nums, drawn = ({told.num_drawn for told in everyone}, {told.drawn for told in everyone})
    if parts.loaders.reseeds and len(nums) == 1 < len(drawn):
        parts.report.warn(DRAWN_APART)
    _compare_samples(parts, everyone, warming=warming)
    facts = Facts(
        step_s=max(told.step_ns for told in everyone) * 1e-9,
        prefetch=max(told.prefetch for told in everyone),
        reference_changed=any(told.reference_changed for told in everyone),
        elapsed_s=everyone[0].elapsed_ns * 1e-9,
        # All wait with the one that waits; two that do at once are taken for one after the other, which is rare.
        lost_s=sum(told.lost_ns for told in everyone) * 1e-9,
        num_workers=max(told.num_workers for told in everyone),
        period=max(told.period for told in everyone),
    )
    return facts, parts.clock() - now


def look_again(parts: Parts) -> None:
    """Compare what entered all ranks' models once more: the script may end before they meet again."""
    mine = _mine(parts, 0, changed=False, now=parts.clock())
    _compare_samples(parts, [mine.alike(told) for told in parts.agreement.gather(mine.numbers())], warming=False)


def _compare_samples(parts: Parts, everyone: Sequence[_Told], *, warming: bool) -> None:
    """Note whether ranks train on the same samples, given what each has told."""
    entered = [told.entered for told in everyone]
    same_labels = are_same_labels([told.labels for told in everyone])
    # What enters the model alike is no sample then: that of a network that makes another one's weights is not. Where
    # one rank alone loads batches, the others get them from it.
    given_apart = len({told.given for told in everyone if told.given}) > 1
    parts.report.same_samples = _drew_the_same(everyone) or _train_on_the_same(
        parts, entered, same_labels=same_labels, given_apart=given_apart
    )
    if parts.loaders.is_any_whole():
        parts.report.alike_by_seed = ()
    parts.report.drawn_alike = _drawn_alike(parts, everyone)
    if not (warming or parts.loaders.reseeds or parts.report.same_samples) and _draw_alike(everyone):
        parts.report.warn(DRAWN_ALIKE)
    parts.report.copies = copies(entered)
    if not (warming or given_apart) and are_one(entered):
        parts.report.warn(ONE_BATCH)


def _mine(parts: Parts, step_ns: int, *, changed: bool, now: int) -> _Told:
    loaders, exchanges, entered = parts.loaders, parts.steplog.exchanges, parts.watch.entered
    # A script that distributes itself may give ranks other samples of the same classes.
    labels = entered.labels if loaders.reseeds and not loaders.is_any_shared() else Labels()
    return _Told(
        step_ns=step_ns,
        prefetch=loaders.prefetch(),
        reference_changed=int(changed),
        elapsed_ns=now - parts.steplog.since_ns,
        num_workers=max((loader.num_workers for loader in loaders.records()), default=0),
        period=exchanges.period() if exchanges is not None else 1,
        num_drawn=loaders.draws.num,
        drawn=loaders.draws.digest,
        lost_ns=loaders.companion.lost_ns,
        reads_whole=int(loaders.are_read_whole()),
        seeded=entered.told_drawn(),
        given=entered.given,
        labels=labels.told(),
        entered=entered.told(),
    )


def _draw_alike(everyone: Sequence[_Told]) -> bool:
    """Return whether several ranks drew indices, and the same ones."""
    drawn = {(told.num_drawn, told.drawn) for told in everyone}
    return len(everyone) > 1 and everyone[0].num_drawn > 0 and len(drawn) == 1


def _drew_the_same(everyone: Sequence[_Told]) -> bool:
    """Return whether ranks drew the same indices, and each trains on all of them."""
    return all(told.reads_whole for told in everyone) and _draw_alike(everyone)


def _drawn_alike(parts: Parts, everyone: Sequence[_Told]) -> tuple[str, ...]:
    """Return what may have picked the same samples on all ranks: see Conversion.

    Where what entered differs, all of it was the same before unseeded numbers were drawn apart, or no loader shares it.
    """
    entered = parts.watch.entered
    is_apart = entered.is_anew or (parts.seeding.is_apart and not parts.loaders.is_any_shared())
    if not (is_apart or parts.report.same_samples) or len({told.seeded for told in everyone}) > 1:
        return ()
    return tuple(entered.drawn)


def _train_on_the_same(parts: Parts, told: list[list[int]], *, same_labels: bool, given_apart: bool) -> bool:
    """Return whether the ranks train on the same samples, given what each has told of those that entered its model.

    `given_apart`: loaders gave them other batches.

    Where dpdoctor's seed may have made them the same, they draw apart first and are looked at anew; what the script
    seeds stays alike.
    """
    seeding, entered = parts.seeding, parts.watch.entered
    if entered.is_anew:
        is_alike = all(of_rank == told[0] for of_rank in told)
        if not is_alike:  # what is drawn in the steps is apart, and the labels are not by it
            parts.report.alike_by_seed = ()
        same = same_labels or is_alike
        if not same:
            parts.report.warn(APART.format(", ".join(seeding.unseeded)))
        return (same_labels or (same and not given_apart)) and (told[0][0] > 0 or parts.report.same_samples)
    same = same_labels or (are_same(told) and not given_apart)
    if not same or seeding.is_apart or not seeding.unseeded:
        return same
    if entered.varies:
        parts.report.alike_by_seed = seeding.used()
    seeding.draw_apart(seeding.unseeded)
    entered.begin_anew()
    return False
