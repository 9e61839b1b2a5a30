"""dpdoctor's hooks in a step, which are taken out in turns: what a step takes less then is what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from dpdoctor import units
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.timing.optimizers import Optimizers
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.steady_tally import SteadyTally

# So few steps that a machine hardly changes its pace from one turn to the next.
TURN = 4
# A smaller share of a step needs no window: hooks may cost twice what one of them says.
LEAST_SHARE = 0.005
SMALL = "watching takes {} of a step, by what one hook costs"
SEVERAL = "the ends of steps are not those of one optimizer's alone"
NOT_ALIKE = "not every step trains on one batch alone, so that none may go unseen"


class Passed(NamedTuple):
    """A step that ended unseen, in ns of the clock; `is_edge`: a loader began in it."""

    begin_ns: int
    end_ns: int
    is_edge: bool


class Turns:
    """Which steps of a window pass unwatched, by turns of as many that do and that are watched; steps count from 0.

    Turns follow the sequence of Thue and Morse, which holds no rhythm that the script may have, too. In each, ranks
    exchange all that they do in `period` steps. A GPU's host runs ahead of it: there only whole windows tell what a
    step takes, and none of their steps is watched.
    """

    def __init__(self, num_steps: int, period: int) -> None:
        self._num_steps = num_steps
        self._length = max(1, min(TURN, num_steps // (2 * period))) * period
        if torch.cuda.is_available():
            self._length = num_steps

    def is_watched(self, step: int) -> bool:
        """Return whether a step is; those before the first that counts are not."""
        return step >= 0 and (step // self._length).bit_count() % 2 == 1

    def left(self, step: int) -> int:
        """Return how many steps from this one on are of its turn."""
        return 1 if step < 0 else min(self._num_steps - step, self._length - step % self._length)


class Hooks:
    """While they are out, what torch and the script call lets everything pass, and only the ends of steps are noted.

    `own_share` is what they take of a step by what one of them costs; None: it is not known. `on_step` is called when
    as many steps have ended as `take_out` or `begin` was told, and takes them by `passed`.

    Attributes:
        are_out: whether they are.
        in_turns: whether they are taken out and put back in turns.
    """

    def __init__(  # noqa: PLR0917 - the parts that they are of
        self,
        clock: Callable[[], int],
        phases: PhaseClock,
        tally: SteadyTally,
        optimizers: Optimizers,
        loaders: Loaders,
        own_share: Callable[[], float | None],
        on_step: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._phases = phases
        self._tally = tally
        self._optimizers = optimizers
        self._loaders = loaders
        self._own_share = own_share
        self._on_step = on_step
        self._begin_ns = self._due = 0
        self._ends: list[int] = []
        self._edges: set[int] = set()
        self.are_out = self.in_turns = False

    def unfit(self) -> str | None:
        """Return why they are not to be taken out; None: they are."""
        share = self._own_share()
        if share is not None and share < LEAST_SHARE:
            return SMALL.format(units.share(share))
        if not self._optimizers.is_sole():
            return SEVERAL
        return None if self._tally.is_steady else NOT_ALIKE

    def take_out(self, num_steps: int = 1) -> None:
        """Let everything pass from the next step on, and call when so many have ended."""
        self.are_out = self._phases.lets_pass = True
        self._loaders.let_pass(self._begins)
        self._optimizers.only_ends(self._ended)
        self.begin(num_steps)

    def put_back(self) -> None:
        """See everything again from the next step on."""
        self.are_out = self._phases.lets_pass = False
        self._loaders.let_pass(None)
        self._optimizers.follow()

    def begin(self, num_steps: int) -> None:
        """Begin the next step now, and call when so many have ended."""
        self._due, self._ends, self._edges = num_steps, [], set()
        self._begin_ns = self._clock()

    def passed(self) -> list[Passed]:
        """Return the steps that have ended since `begin`; the last one ends now where nobody noted its end."""
        ends = self._ends or [self._clock()]
        begins = self._begin_ns, *ends
        return [Passed(*times, number in self._edges) for number, times in enumerate(zip(begins, ends, strict=False))]

    def _begins(self) -> None:
        """A loader begins."""
        self._edges.add(len(self._ends))

    def _ended(self, *_: object) -> None:
        """A step ends."""
        self._ends.append(self._clock())
        if len(self._ends) == self._due:
            self._on_step()
