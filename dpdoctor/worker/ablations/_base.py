"""What an ablation is: something that is switched off, or on, for the steps of a window, and what it may touch for
that.
"""

from __future__ import annotations

import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpdoctor.worker.base.mode import Mode

if TYPE_CHECKING:
    import torch
    from torch.amp.grad_scaler import GradScaler

    from dpdoctor.worker.ablations._hooks import Hooks
    from dpdoctor.worker.ablations._wire import Counted, Wire
    from dpdoctor.worker.base.patches import Patches
    from dpdoctor.worker.data.companion import Companion
    from dpdoctor.worker.data.replay import Replay
    from dpdoctor.worker.timing.exchanges import Issued
    from dpdoctor.worker.timing.optimizers import Optimizers
    from dpdoctor.worker.timing.tally import Tally
    from dpdoctor.worker.wrap.redirect import Watch
    from dpdoctor.worker.wrap.wrapping import Wrapping

# What an ablation takes must leave so much of the free memory to everybody else.
MEMORY_MARGIN = 1.25
ONE_RANK = "one rank has nobody to communicate with"


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationContext:
    """What ablations look at and switch.

    `optimizers` are the script's; `optimizer_share` tells what they take of a step, by the host's clock, None: nobody
    knows. `hooks` are those that see a step. `wire` is what ranks exchange gradients by; None: this process has no
    others. `fair_threads` is its share of the cores of its host.
    """

    mode: Mode
    world_size: int
    wrapping: Wrapping
    watch: Watch
    tally: Tally
    replay: Replay
    companion: Companion
    precision: Precision
    optimizers: Optimizers
    optimizer_share: Callable[[], float | None]
    hooks: Hooks
    wire: Wire | None = None
    fair_threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a window of an ablation does not count. `final`: no other window of it can be any better."""

    reason: str
    final: bool


class Ablation(ABC):
    """One ablation. Subclasses override what differs; each module offers one as ABLATION.

    Attributes:
        priority: where time is short, ablations of a small number are measured and those of a large one are not.
        sets_apart: ranks train on their own in its windows; what they trained is put back at the end of each.
        replays: the loader is not asked in its windows.
        calls_others: other operators of torch are called in its windows, at the same lines of the script.
    """

    priority: int
    sets_apart = False
    replays = False
    calls_others = False

    def applies(self, mode: Mode) -> bool:  # noqa: ARG002
        """Return whether the ablation means anything in this mode on this machine."""
        return True

    @abstractmethod
    def unfit(self, context: AblationContext) -> str | None:
        """Return why the ablation cannot run with this script; None: it can."""

    @abstractmethod
    def begin(self, context: AblationContext) -> None:
        """Switch it on; nothing of the script runs meanwhile, and no time is counted."""

    @abstractmethod
    def end(self, context: AblationContext) -> Fault | None:
        """Switch it off; return why the window that ends does not count, None: it does."""

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why what ranks exchanged in its window does not show that it did what it says; None: it does."""
        return counted.beside(window)


class Precision:
    """Whether the script mixes precisions by itself: where it first entered autocast, and its scalers."""

    def __init__(self) -> None:
        self._line: str | None = None
        self._scalers: weakref.WeakSet[GradScaler] = weakref.WeakSet()

    def watch(self, patches: Patches) -> None:
        """See autocast entered and losses scaled from now on."""
        import torch
        from torch.amp.grad_scaler import GradScaler

        from dpdoctor.worker.base import lines

        enter, scale = vars(torch.autocast)["__enter__"], vars(GradScaler)["scale"]

        @functools.wraps(enter)
        def entered(context: torch.autocast) -> Any:
            if self._line is None and context._enabled:
                self._line = lines.caller()
            return enter(context)

        @functools.wraps(scale)
        def scaled(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            self._scalers.add(scaler)
            return scale(scaler, *args, **kwargs)

        patches.replace(torch.autocast, "__enter__", entered)
        patches.replace(GradScaler, "scale", scaled)

    def scalers(self) -> list[GradScaler]:
        """Return the script's scalers that are in use."""
        return [scaler for scaler in self._scalers if scaler.is_enabled()]

    def already(self) -> str | None:
        """Return how the script mixes precisions by itself; None: it does not."""
        if self._line is not None:
            return f"the script enters autocast itself ({self._line})"
        return "the script scales its loss with a GradScaler" if self.scalers() else None
