"""When torch.compile compiles, and how long: at the first call and, for a shape it has not seen, again."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.recorder import Recorder

# Importing it takes a second, which a script that compiles nothing should not pay.
DYNAMO = "torch._dynamo"


class CompileEvents:
    """Listens to dynamo from the script's first torch.compile on; what is compiled inside of another is in that."""

    def __init__(self, clock: Callable[[], int], recorder: Recorder) -> None:
        self._clock = clock
        self._recorder = recorder
        self._began_ns = 0

    def watch(self, patches: Patches) -> None:
        """Wait for the first torch.compile; nn.Module.compile calls it, too."""
        compile_any = torch.compile

        @functools.wraps(compile_any)
        def compile_and_listen(*args: Any, **options: Any) -> Any:
            result = compile_any(*args, **options)
            self._listen()
            return result

        patches.replace(torch, "compile", compile_and_listen)
        patches.add("torch._dynamo callbacks", self._stop)

    def _listen(self) -> None:
        """Listen, again where the script made dynamo forget everything."""
        handler = _handler()
        if handler is not None and self._begin not in handler.start_callbacks:
            handler.register_start_callback(self._begin)
            handler.register_end_callback(self._end)

    def _stop(self) -> None:
        handler = _handler()
        if handler is not None and self._begin in handler.start_callbacks:
            handler.remove_start_callback(self._begin)
            handler.remove_end_callback(self._end)

    def _begin(self, _: Any) -> None:
        self._began_ns = self._clock()

    def _end(self, what: Any) -> None:
        duration_ns = self._clock() - self._began_ns
        detail = f"{what.callback_trigger.name.lower()} {what.compile_id}"
        self._recorder.event("compile", at_ns=self._began_ns, duration_ns=duration_ns, detail=detail)


def graph_breaks() -> int | None:
    """Return the breaks of the graph in all that was compiled so far, each once; None where nothing was."""
    if f"{DYNAMO}.utils" not in sys.modules:
        return None
    counters = importlib.import_module(f"{DYNAMO}.utils").counters
    frames = counters["frames"]
    # Frames are not counted with fullgraph=True, where a break is an error; graphs not where every frame broke.
    if not frames["total"] and not counters["stats"]["unique_graphs"]:
        return None
    # A break inside of a loop gives up the whole frame, and counts as that alone.
    return int(sum(counters["graph_break"].values()) + frames["total"] - frames["ok"])


def _handler() -> Any:
    """Return dynamo's handler of callbacks; None while nobody imported dynamo."""
    return importlib.import_module(f"{DYNAMO}.callback").callback_handler if DYNAMO in sys.modules else None
