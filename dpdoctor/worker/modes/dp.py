"""dp: torch's nn.DataParallel, one process that drives all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpdoctor.worker.modes._base import Conversion, Mode

if TYPE_CHECKING:
    from torch import nn


class DP(Mode):
    """The public DataParallel with its defaults; each batch of the script is split over the devices."""

    summary = "nn.DataParallel, one process for all devices"
    batch_rule = "global"

    def num_devices(self, num_devices: int) -> int:
        """Return all of them."""
        return num_devices

    def inactive(self, *, has_gpus: bool) -> str | None:
        """Return why there is nothing to measure without a GPU."""
        if has_gpus:
            return None
        return "nn.DataParallel needs a GPU; without one torch calls the plain module, and its figures are shown here"

    def convert(self, module: nn.Module, how: Conversion) -> Callable[..., Any]:  # noqa: ARG002
        """Return the wrapper over all visible GPUs; without any, what torch would call: the module itself."""
        import torch

        if not torch.cuda.is_available():
            return module._call_impl
        module.__class__ = replicable(type(module))
        return torch.nn.DataParallel(module)


def replicable(cls: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass whose replicas call themselves.

    DataParallel copies a module's `__dict__`, and with it the redirect of its call, which would lead every replica
    back to DataParallel. Copies and pickles are of the script's own class.
    """

    class Replicable(cls):  # type: ignore[valid-type, misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "_is_replica", False):
                return self._call_impl(*args, **kwargs)
            return super().__call__(*args, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return object.__new__, (cls,), self.__getstate__()

    Replicable.__name__, Replicable.__qualname__, Replicable.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Replicable


MODE = DP()
