"""How long the script saves: torch.save and safetensors, to a file."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from dpdoctor import redact
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.facts.evaluations import Evaluations
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder


class Checkpoints:
    """Records every save of the training thread that goes to a file, the outermost where one calls another."""

    def __init__(
        self, clock: Callable[[], int], phases: PhaseClock, recorder: Recorder, evaluations: Evaluations
    ) -> None:
        self._clock = clock
        self._phases = phases
        self._recorder = recorder
        self._evaluations = evaluations
        self._saving = False

    def watch(self, patches: Patches) -> None:
        """See every save from now on."""
        places = [(torch, "save", "f"), (torch.serialization, "save", "f")]
        if importlib.util.find_spec("safetensors"):
            places.append((importlib.import_module("safetensors.torch"), "save_file", "filename"))
        for owner, name, keyword in places:
            patches.replace(owner, name, self._timed(getattr(owner, name), keyword))

    def _timed(self, save: Callable[..., Any], keyword: str) -> Callable[..., Any]:
        """Return `save`, whose second argument is called `keyword` and is a path or an open file."""

        @functools.wraps(save)
        def timed(*args: Any, **options: Any) -> Any:
            name = _file_name(args[1] if len(args) > 1 else options.get(keyword))
            if self._saving or name is None or self._phases.is_elsewhere():
                return save(*args, **options)
            self._saving = True
            self._evaluations.leaves()
            began_ns = self._clock()
            try:
                return save(*args, **options)
            finally:
                self._saving = False
                duration_ns = self._clock() - began_ns
                self._recorder.event("checkpoint", at_ns=began_ns, duration_ns=duration_ns, detail=redact.text(name))

        return timed


def _file_name(file: Any) -> str | None:
    """Return the last part of a file's path; None for what lies in memory."""
    path = file if isinstance(file, (str, bytes, os.PathLike)) else getattr(file, "name", None)
    return os.path.basename(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else None  # noqa: PTH119
