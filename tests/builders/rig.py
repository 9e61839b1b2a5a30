"""The watching parts of a rank, put together as rank.py does, around a script that is a few lines of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from dpdoctor.loading import BatchRecord
from dpdoctor.records import PHASES
from dpdoctor.worker.ablations._hooks import Hooks
from dpdoctor.worker.base.mode import Mode, WrapOptions
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.modes.single import MODE as SINGLE
from dpdoctor.worker.timing.optimizers import Optimizers, StepCounter
from dpdoctor.worker.timing.phases import PhaseClock, watch_backward
from dpdoctor.worker.timing.steady_tally import SteadyTally
from dpdoctor.worker.timing.tally import Counted
from dpdoctor.worker.wrap.redirect import Watch
from dpdoctor.worker.wrap.wrapping import Wrapping
from tests.builders.handclock import HandClock


class FailedError(Exception):
    """What `fail` raises here; in a rank it ends the mode."""


class Recording(Mode):
    """Converts a module to a call that leaves a note and then calls the module, as a parallel wrapper would."""

    summary = "for tests"
    distributed = True
    routes_methods = True

    def __init__(self) -> None:
        self.converted: list[nn.Module] = []
        self.called: list[nn.Module] = []
        self.told: WrapOptions | None = None

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
        self.converted.append(module)
        self.told = how

        def call(*args: Any, **kwargs: Any) -> Any:
            self.called.append(module)
            return module(*args, **kwargs)

        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that ended: the clock's ticks per phase, those that are 0 left out, and what the tally counted."""

    ticks: dict[str, int]
    counted: Counted


class Rig:
    """Watches what happens until its patches are undone; `steps` are those of the reference optimizer."""

    def __init__(
        self,
        patches: Patches,
        mode: Mode = SINGLE,
        *,
        rule: str = "per-device",
        world_size: int = 1,
        unused: Sequence[str] = (),
        patience: int = 0,
    ) -> None:
        self.clock = HandClock(1)
        self.phases, self.tally, self.counter = PhaseClock(self.clock), SteadyTally(patience=2), StepCounter()
        self.watch = Watch(self.phases, self.tally)
        self.idle: list[tuple[str, ...]] = []
        self.optimizers = Optimizers(
            self.counter,
            self.phases,
            self.check,
            self.on_step,
            self.watch.optimizer_stepped,
            on_idle=self.idle.append,
            patience=patience,
        )
        self.wrapping = Wrapping(mode, patches, self.watch, self.optimizers.alive, self.fail)
        self.loaders = Loaders(rule, 0, world_size, seed=0)
        self.loaders.is_evaluating = self.wrapping.is_evaluating
        self.steps: list[Step] = []
        self.checks = 0
        self.batches: list[BatchRecord] = []
        self.loaders.watch(patches, self.phases, self.tally, self.check, self.fail, clock=self.clock, log=self)
        self.optimizers.watch(patches)
        watch_backward(patches, self.phases, self.after_backward)
        self.wrapping.seek(unused=unused)

    def hooks(self, own_share: float | None = None) -> Hooks:
        """Return those of this rig, which take that share of a step."""
        parts = self.clock, self.phases, self.tally, self.optimizers, self.loaders
        return Hooks(*parts, lambda: own_share, self.on_step)

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    def batch(self, make: Callable[..., BatchRecord], *values: Any) -> None:
        self.batches.append(make(*values))

    def check(self) -> None:
        self.checks += 1

    def fail(self, reason: str) -> NoReturn:
        raise FailedError(reason)

    def after_backward(self) -> None:
        self.tally.backward(in_step=bool(self.counter.under_way))
        self.watch.backward_ended()
        self.wrapping.backward_ended()
        if not self.optimizers.any_seen:
            self.wrapping.without_optimizer = True
        self.optimizers.backward_ended()
        self.counter.backward_ended()

    def on_step(self) -> None:
        self.wrapping.step_ended()
        self.watch.is_training = False
        notes = self.phases.lap()
        ticks = notes.phases_ns()
        assert sum(ticks) == notes.duration_ns
        named = {name: number for name, number in zip(PHASES, ticks, strict=True) if number}
        self.steps.append(Step(ticks=named, counted=self.tally.lap()))
