"""What a mode is: how many processes, how batches are shared, how a module is converted, what proves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dpdoctor.records import Check, Counters

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from dpdoctor.worker.base.patches import Patches

MADE_LATE = (
    "made when its model was wrapped already, at its first training forward: {}. Parallel wrappers leave it out; make "
    "it in `__init__`"
)


def _unheard(text: str) -> None:
    """Take no note of a warning."""


class ConversionError(Exception):
    """The mode cannot convert this script; the message names the reason and the script's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapOptions:
    """What a mode may need to convert a module.

    Attributes:
        has_unused: the baseline found trained parameters that get no gradient.
        ignored: names of parameters that get no gradient and that no optimizer holds, such as an average of the model
            that it keeps inside.
        fsdp_wrap: class names of the units to shard; None: the mode chooses.
        optimizers: the script's torch optimizers so far.
        wrapped: the modules that are wrapped so far.
        warn: notes what the reader must know of this conversion.
    """

    has_unused: bool
    fsdp_wrap: tuple[str, ...] | None
    optimizers: tuple[Optimizer, ...]
    wrapped: tuple[nn.Module, ...] = ()
    ignored: frozenset[str] = frozenset()
    warn: Callable[[str], None] = _unheard


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the proof of conversion is judged on, gathered over all ranks after one profiled step.

    Attributes:
        checksums: per rank, of all trained parameters, bit for bit.
        moved: whether they changed since conversion.
        unwrapped: names of trained parameters that no wrapped unit holds.
        made_late: one of them that its model was given when it was wrapped already; empty: none was.
        forwards: training forwards of that step, the first after each backward, by id of the module.
        gradient_bytes: of every gradient that the step accumulated, each time it did.
        accumulated: how often it did, by id of the parameter.
        counters: of this rank's profiled step.
        replaced: whether parameters had other tensors as gradients at its end than those that backward passes left.
    """

    checksums: tuple[int, ...]
    moved: bool
    unwrapped: tuple[str, ...]
    forwards: dict[int, int]
    gradient_bytes: int
    accumulated: Mapping[int, int]
    counters: Counters
    made_late: str = ""
    replaced: bool = False


@dataclass(slots=True, kw_only=True)
class Passes:
    """The script's backward passes: lines at which a parallel wrapper may not follow gradients; empty: nowhere yet.

    Attributes:
        by_grad: torch.autograd.grad gives gradients of parameters.
        repeated: a backward pass goes through a forward that another one went through before, and kept.
        past: a backward pass goes through a forward that no call of the wrapper was seen for, or an older one.
        past_method: the method of a model, like Model.loss, by which it goes past; empty: none is known.
        with_graph: a backward pass, or torch.autograd.grad, makes a graph of its own (create_graph=True).
        with_step: an optimizer takes its step inside of a backward pass.
        in_forward: a backward pass begins inside of a model's forward.
        functional: torch.func.functional_call runs a module on other tensors than its parameters.
        num_ended: how many backward passes have ended.
    """

    by_grad: str = ""
    repeated: str = ""
    past: str = ""
    past_method: str = ""
    with_graph: str = ""
    with_step: str = ""
    in_forward: str = ""
    functional: str = ""
    num_ended: int = 0

    def past_call(self) -> str:
        """Return how the script trains past a call of its model, as the end of a sentence; or nothing."""
        if not self.past:
            return ""
        if not self.past_method:
            return (
                f": the backward pass at {self.past} goes through a forward that no call of the model since the "
                "backward pass before began. Call the model once before each backward pass, or add the losses up"
            )
        return (
            f": the script trains through {self.past_method}, and the backward pass at {self.past} goes past it, by a "
            "reference taken before training or through another method. In every step call it by its name, as "
            f"model.{self.past_method.rpartition('.')[2]}(...)"
        )

    def before_return(self) -> str:
        """Return which backward pass no wrapper is ready for, as the end of a sentence; or nothing."""
        if not self.in_forward:
            return ""
        return (
            f": the backward pass at {self.in_forward} begins inside of the model's forward, and parallel wrappers "
            "follow one that begins after it. Let the forward return the loss, and call backward() on that"
        )

    def past_hooks(self) -> str:
        """Return which gradients no wrapper sees, as the end of a sentence; or nothing.

        Where a backward pass is too early for them they see none, whatever else torch.autograd.grad is for.
        """
        if self.in_forward or not self.by_grad:
            return self.before_return()
        return (
            f": torch.autograd.grad at {self.by_grad} takes gradients of parameters, and parallel wrappers act in "
            "backward() alone. Let loss.backward() fill their .grad"
        )


class Mode:
    """A way to run one script. Subclasses override what differs; each module offers one as MODE.

    Attributes:
        replicates: all ranks hold the same parameters, bit for bit, after every step.
        routes_methods: what `convert` returns may be called for a method of the module, put in place of its forward.
        wraps_parts: a part of a wrapped module may be wrapped beside it, for calls of the part alone.
        in_threads: forwards run in threads other than the script's.
        only_observes: nothing of the script may run in another way than it would.
        communicates: its ranks send each other gradients or parameters.
        wrappers: what it made around the script's modules.
        passes: what is known of the script's backward passes; a rank gives its own.
    """

    distributed = False
    batch_rule = "per-device"
    needs_unused = False
    replicates = False
    routes_methods = False
    wraps_parts = False
    in_threads = False
    only_observes = False
    communicates = False
    wrappers: Sequence[nn.Module] = ()
    passes = Passes()

    def world_size(self, num_devices: int) -> int:
        """Return the number of processes for so many devices."""
        return num_devices if self.distributed else 1

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:  # noqa: ARG002
        """Return what a training forward of `module` must call; may wrap the module, must not replace it.

        Raises:
            ConversionError: the mode cannot work with this module.
        """
        raise ConversionError(f"{type(self).__name__} converts nothing, so it cannot take {type(module).__name__}")

    def around(self, module: nn.Module, target: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return what a training forward of a converted module calls for `target`, which may be compiled."""
        return target

    def without_gradients(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return what a call of a converted module's method does while gradients are disabled."""
        return method

    def num_devices(self, num_devices: int) -> int:
        """Return how many of so many devices the mode drives."""
        return num_devices if self.distributed else 1

    def inactive(self, *, num_gpus: int) -> str | None:  # noqa: ARG002
        """Return why the mode does nothing on so many GPUs; None: it does. 0: it runs on the CPU."""
        return None

    def prepare(self, patches: Patches) -> None:
        """Replace what the script must find different in this mode, before it runs."""

    def explain(self, error: BaseException, line: str) -> str | None:  # noqa: ARG002
        """Return why the mode made the script raise this error at this line; None: it did not."""
        return None

    def why_apart(self) -> str:
        """Return which backward passes the mode does not see, as the end of a sentence; nothing where it sees all."""
        return self.passes.past_hooks()

    def checks(self, evidence: Evidence) -> list[Check]:
        """Return what proves that the conversion took effect; a process alone only needs to see what is trained."""
        if not evidence.unwrapped:
            return [
                Check(name="modules", ok=True, text="every trained parameter belongs to a module that the script calls")
            ]
        # Alone, a parameter outside of every module trains as well as any other; ranks would each train their own.
        ok = False if self.distributed else None
        if evidence.made_late:
            return [Check(name="modules", ok=ok, text=f"trained, but {MADE_LATE.format(evidence.made_late)}")]
        text = f"trained, but outside of every module that the script calls: {evidence.unwrapped[0]}"
        if self.distributed:
            text += ". Set it as an attribute, an nn.Parameter, of a module that is called"
        return [Check(name="modules", ok=ok, text=text)]
