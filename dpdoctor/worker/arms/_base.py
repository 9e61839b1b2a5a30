"""What an arm is: something that is switched off, or on, for the steps of a window, and what it may touch for that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpdoctor.worker.modes._base import Mode

if TYPE_CHECKING:
    from dpdoctor.worker.adoption.adopt import Adopter
    from dpdoctor.worker.adoption.redirect import Watch
    from dpdoctor.worker.arms._precision import Precision
    from dpdoctor.worker.data.companion import Companion
    from dpdoctor.worker.data.replay import Replay
    from dpdoctor.worker.facts.exchanges import Issued
    from dpdoctor.worker.proofs import Counted
    from dpdoctor.worker.timing.tally import Tally
    from dpdoctor.worker.wire import Wire

ONE_RANK = "one rank has nobody to communicate with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What arms look at and switch.

    `wire` is what ranks exchange gradients by; None: this process has no others. `fair_threads` is its share of the
    cores of its host.
    """

    mode: Mode
    world_size: int
    adopter: Adopter
    watch: Watch
    tally: Tally
    replay: Replay
    companion: Companion
    precision: Precision
    wire: Wire | None = None
    fair_threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a window of an arm does not count. `final`: no other window of it can be any better."""

    reason: str
    final: bool


class Arm(ABC):
    """One ablation. Subclasses override what differs; each module offers one as ARM.

    Attributes:
        priority: where time is short, arms of a small number are measured and those of a large one are not.
        sets_apart: ranks train on their own in its windows; what they trained is put back at the end of each.
        replays: the loader is not asked in its windows.
    """

    summary: str
    priority: int
    sets_apart = False
    replays = False

    def applies(self, mode: Mode) -> bool:  # noqa: ARG002
        """Return whether the arm means anything in this mode on this machine."""
        return True

    @abstractmethod
    def unfit(self, bench: Bench) -> str | None:
        """Return why the arm cannot run with this script; None: it can."""

    @abstractmethod
    def begin(self, bench: Bench) -> None:
        """Switch it on; nothing of the script runs meanwhile, and no time is counted."""

    @abstractmethod
    def end(self, bench: Bench) -> Fault | None:
        """Switch it off; return why the window that ends does not count, None: it does."""

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why what ranks exchanged in its window does not show that it did what it says; None: it does."""
        return counted.beside(window)
