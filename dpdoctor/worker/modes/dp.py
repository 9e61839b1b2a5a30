"""dp: torch's nn.DataParallel, one process that drives all devices."""

from __future__ import annotations

import inspect
import itertools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpdoctor import units
from dpdoctor.records import Check
from dpdoctor.spec import DEVICE_IDS_VARIABLE, placement
from dpdoctor.worker.base.mode import ConversionError, Evidence, Mode, WrapOptions

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dpdoctor.worker.base.patches import Patches
    from dpdoctor.worker.modes._replicas import Parallel

# What torch says when a script uses a vector where it had the scalar loss of one device.
_WANTS_SCALAR = re.compile(
    r"grad can be implicitly created only for scalar|cannot be converted to Scalar|only one element tensors"
    r"|Boolean value of Tensor|unsupported format string passed to Tensor"
)
# How torch hands on what a replica raised (ExceptionWrapper.reraise): its name, then its whole traceback as text.
_IN_REPLICA = re.compile(r"Caught (?P<name>\w+) in replica \d+ on device \d+")
_WHY_IN_REPLICA = {
    "StopIteration": "parameters() of a replica is empty: forward must take its device from an input",
    "Expected all tensors to be on the same device": "a tensor that forward uses is neither a parameter nor a buffer "
    "of the module, so that it stayed behind (register_buffer)",
}


class DP(Mode):
    """The public DataParallel with its defaults; each batch of the script is split over the devices."""

    batch_rule = "global"

    def __init__(self) -> None:
        self._device_ids: list[int] | None = None
        self._parallel: dict[int, Parallel] = {}

    def num_devices(self, num_devices: int) -> int:
        """Return all of them."""
        return num_devices

    def inactive(self, *, num_gpus: int) -> str | None:
        """Return why there is nothing to measure without two GPUs."""
        if num_gpus > 1:
            return None
        plain = "torch calls the plain module, and its figures are shown here"
        if num_gpus:
            return f"nn.DataParallel needs two GPUs; on one {plain}. --dp-devices 0,0 puts two replicas on it"
        return f"nn.DataParallel needs a GPU; without one {plain}"

    def prepare(self, patches: Patches) -> None:
        """Take the devices that the launcher chose, and see all replicas from now on."""
        import torch
        from torch import nn

        # Without a GPU the plain module is called, and a method can stand for its call.
        self.routes_methods = not torch.cuda.is_available()
        self.in_threads = torch.cuda.is_available()
        chosen = os.environ.pop(DEVICE_IDS_VARIABLE, "")
        self._device_ids = [int(number) for number in chosen.split(",")] if chosen else None
        replicate = nn.DataParallel.replicate

        def replicate_and_watch(wrapper: nn.DataParallel[nn.Module], *args: Any, **kwargs: Any) -> list[nn.Module]:
            replicas = replicate(wrapper, *args, **kwargs)
            for parallel in self._parallel.values():
                if parallel.wrapper is wrapper:
                    parallel.watch(replicas)
            return replicas

        patches.replace(nn.DataParallel, "replicate", replicate_and_watch)

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
        """Return the wrapper over the chosen GPUs; without any, what torch would call: the module itself.

        A DataParallel that the script made itself is left alone, with the devices that it was given.
        """
        import torch

        from dpdoctor.worker.modes._replicas import Parallel

        if not torch.cuda.is_available():
            if self._device_ids:
                raise ConversionError("this machine has GPUs, but torch finds none: is it built for them?")
            return module._call_impl
        if isinstance(module, torch.nn.DataParallel):
            wrapper = module
        else:
            refuse_elsewhere(module, torch.device("cuda", 0))
            wrapper = torch.nn.DataParallel(module, device_ids=self._device_ids)
        parallel = self._parallel[id(module)] = Parallel(wrapper, how.warn)
        return parallel

    def explain(self, error: BaseException, line: str) -> str | None:
        """Return the reason when a loss became a vector, a replica raised, or a batch could not be split or joined."""
        text = str(error)
        scalar = next((parallel for parallel in self._parallel.values() if parallel.returns_scalar), None)
        if scalar is not None and _WANTS_SCALAR.search(text):
            return (
                f"forward returns a scalar loss ({_forward_line(scalar.wrapper.module)}); nn.DataParallel gathers one "
                f"per device into a vector, which {line} cannot use. Call .mean() on what the model returns, or let it "
                "return its outputs and compute the loss outside"
            )
        replica = _IN_REPLICA.search(text)
        if replica:
            return _in_replica(replica["name"], text, line)
        if _raised_by_data_parallel(error):
            return f"nn.DataParallel could not split the inputs of {line} or join its outputs along dim 0: {text}"
        return None

    def checks(self, evidence: Evidence) -> list[Check]:
        """Return whether every wrapped module that trained did so in replicas."""
        return [
            *super().checks(evidence),
            *(
                _replicas_ran(parallel, evidence.forwards[unit])
                for unit, parallel in self._parallel.items()
                if evidence.forwards.get(unit)
            ),
        ]


def refuse_elsewhere(module: nn.Module, home: torch.device) -> None:
    """Refuse a module that does not lie on DataParallel's first device as a whole.

    Raises:
        ConversionError: it names the first parameter or buffer that lies elsewhere.
    """
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.device != home:
            raise ConversionError(
                f"nn.DataParallel needs the whole module on {home}, but {name} is on {tensor.device}. "
                f"Move the model to {home} before it is called"
            )


def _replicas_ran(parallel: Parallel, num_forwards: int) -> Check:
    """Judge a module's last forwards, all of them of the profiled step."""
    name, where = "replicas", placement(parallel.device_ids)
    if len(parallel.device_ids) < 2:
        text = "what replicas cost: on one GPU nn.DataParallel makes none. --dp-devices 0,0 puts two on it"
        return Check(name=name, ok=None, text=text)
    calls = list(parallel.calls)[-num_forwards:]
    if not calls:
        text = "nn.DataParallel did not take effect: the model was called past it, as a model that is compiled is"
        return Check(name=name, ok=False, text=text)
    for call in calls:
        if not call.entered or call.entered != call.made:
            text = f"nn.DataParallel did not take effect: {call.entered} of {units.count(call.made, 'replica')} ran"
            return Check(name=name, ok=False, text=text)
    fewest = min(call.entered for call in calls)
    if fewest < len(parallel.device_ids):
        return Check(name=name, ok=True, text=f"{units.count(fewest, 'part')} of a batch too small for {where} ran")
    return Check(name=name, ok=True, text=f"{where} ran in {units.count(len(calls), 'training forward')} of a step")


def _forward_line(module: nn.Module) -> str:
    """Return `file:line` of a module's forward; its class's name where that is not Python."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else type(module).__name__


def _in_replica(name: str, text: str, line: str) -> str:
    raised = [said for said in text.splitlines() if said.startswith(name)]
    what = raised[-1] if raised else name
    why = next((f" ({hint})" for sign, hint in _WHY_IN_REPLICA.items() if sign in what), "")
    return f"the model called at {line} raised {what} in a replica of nn.DataParallel{why}"


def _raised_by_data_parallel(error: BaseException) -> bool:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and "/torch/nn/parallel/" in last.tb_frame.f_code.co_filename


MODE = DP()
