"""nn.DataParallel with threads of the CPU for devices: torch's own forward, replicate and parallel_apply."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.base.mode import WrapOptions
from dpdoctor.worker.modes import dp
from dpdoctor.worker.modes.dp import DP


class CpuParallel(nn.DataParallel):
    """Splits and joins as torch does on GPUs; only the copies between devices are the CPU's own."""

    def __init__(self, module: nn.Module, device_ids: Sequence[int] | None = None) -> None:
        nn.Module.__init__(self)  # DataParallel's would find out that there is no GPU, or use one
        self.module, self.dim, self.output_device = module, 0, 0
        self.device_ids = [0, 1] if device_ids is None else list(device_ids)
        self.src_device_obj = torch.device("cpu")

    def scatter(self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Any]) -> Any:
        assert not kwargs
        parts = list(zip(*(x.chunk(len(device_ids)) for x in inputs), strict=True))
        return tuple(parts), tuple({} for _ in parts)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        assert output_device == 0
        return torch.stack(outputs) if outputs[0].dim() == 0 else torch.cat(outputs)


class CpuDP(DP):
    """The mode dp on a machine that seems to have GPUs for as long as a module is converted."""

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(nn, "DataParallel", CpuParallel)
            patch.setattr(dp, "refuse_elsewhere", lambda *_: None)
            return super().convert(module, how)


def use_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's replicate and parallel_apply take the CPU for an accelerator."""

    def copies(tensors: Sequence[torch.Tensor], devices: Sequence[int], detach: bool = False) -> list[list[Any]]:
        if detach:
            return [list(tensors), *([t.detach().clone() for t in tensors] for _ in devices[1:])]
        # The first device's are no copies, but no parameters any more either: torch returns them from a Function.
        return [[t.view_as(t) for t in tensors], *([t.clone() for t in tensors] for _ in devices[1:])]

    # torch.nn.parallel has a function of the module's name.
    monkeypatch.setattr(importlib.import_module("torch.nn.parallel.replicate"), "_broadcast_coalesced_reshape", copies)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.accelerator, "device_index", lambda _: contextlib.nullcontext())
