"""What happens beside training steps, as events: evaluations, saves, beginnings of loaders, compiling, collections."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import is_grad_enabled
from torch.utils.data import DataLoader

from dpdoctor import redact
from dpdoctor.records import CALLED_AT, CALLED_BY
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder

EVALUATION, INFERENCE = "evaluation", "inference"
# A pause below this is not worth a line; the youngest generation is collected many times a second.
LEAST_GC_NS = 1_000_000
# Importing it takes a second, which a script that compiles nothing should not pay.
_DYNAMO = "torch._dynamo"


class Evaluations:
    """Tells `ended` the kind, the begin and the end, in ns of `clock`, of every pass of forwards without gradients.

    A pass begins with a forward without gradients, or with the iteration of a loader without gradients that precedes
    it. It ends where the script turns to something else after its last forward: a loader with gradients enabled, a
    checkpoint, a training forward.

    It is an evaluation when it reads a loader of its own: one that is asked with gradients off, or that is asked for
    another batch after a forward, upon which a forward follows or the loader ends. Else it is an inference, of which
    nobody knows what for: a rollout or generated text that is trained on next, a generator's sample for its critic, an
    evaluation of tensors that lie in memory.

    A module in eval mode whose forward has gradients evaluates, too, in a script that forgot `no_grad`, unless it calls
    backward before it fetches the next batch: then it trains.

    Once the script has trained, asking a loader for one batch after the other without gradients is an evaluation, too,
    though no forward is seen: of what a wrapper holds, as DDP's `model.module`, or of an average of the weights.

    Attributes:
        doubt_ns: since when it is not known whether a forward with gradients trains or evaluates; None: it is.
    """

    def __init__(self, clock: Callable[[], int], ended: Callable[[str, int, int], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._source: int | None = None
        self._reads_aside = self._has_trained = False
        self._forget()

    def _forget(self) -> None:
        self._iterated_ns: int | None = None
        self._begin_ns: int | None = None
        self._left_ns: int | None = None
        self.doubt_ns: int | None = None
        self._asked = self._reads = self._asks = self._asks_again = False

    @property
    def is_on(self) -> bool:
        """Return whether the script has run a forward without gradients and not turned to something else since.

        Or read a loader without gradients, as for another model: an average of the weights that is evaluated.
        """
        return self._reads_aside or (self._begin_ns is not None and self._left_ns is None)

    def iterates(self) -> None:
        """The script begins to iterate a loader."""
        if self._begin_ns is None and not is_grad_enabled():
            self._iterated_ns = self._iterated_ns or self._clock()
        self.leaves()

    def fetches(self, iterator: int = 0) -> None:
        """The script asks an iterator over a loader, known by this number, for a batch."""
        self._reads_aside = not is_grad_enabled()
        if self._begin_ns is None:
            self._source = iterator
            if self._iterated_ns is not None and self._has_trained and not is_grad_enabled():
                # No forward was seen since the batch before.
                self._asks, self._asks_again, self._left_ns = True, self._asks, None
        if self._begin_ns is not None or self._iterated_ns is not None:
            self._asked |= iterator == self._source
            self._reads |= not is_grad_enabled()
            self.doubt_ns = None
            self.leaves()

    def ran_out(self, iterator: int = 0) -> None:
        """The script asked an iterator that had no batch left."""
        self._reads |= self._begin_ns is not None and iterator == self._source

    def leaves(self) -> None:
        """What begins now is no part of an evaluation, unless another of its forwards follows."""
        is_open = self._begin_ns is not None or self._asks_again
        if is_open and self._left_ns is None and is_grad_enabled():
            self._left_ns = self._clock()

    def forward(self, *, with_gradients: bool = False) -> None:
        """A forward begins that is an evaluation's; `with_gradients`: only if no backward follows it."""
        now = self._clock()
        if self._begin_ns is None:
            self._begin_ns = self._iterated_ns or now
        else:
            self._reads |= self._asked
        if not with_gradients:
            self.doubt_ns = None
        elif self.doubt_ns is None:
            self.doubt_ns = self._left_ns or now
        self._left_ns = None

    def backward(self) -> None:
        """A backward pass ended."""
        if self.doubt_ns is not None:
            self._left_ns = self.doubt_ns
            self.trains()

    def trains(self) -> None:
        """A training forward begins, or the script ends: no evaluation goes on."""
        if self._begin_ns is not None:
            end_ns = self._left_ns or self._clock()
            if end_ns > self._begin_ns:
                self._ended(EVALUATION if self._reads else INFERENCE, self._begin_ns, end_ns)
            self._forget()
        elif self._iterated_ns is not None:
            if self._asks_again:
                self._ended(EVALUATION, self._iterated_ns, self._left_ns or self._clock())
            self._forget()
        self._source, self._reads_aside, self._has_trained = None, False, True


class Checkpoints:
    """Records every save of the training thread that goes to a file, the outermost where one calls another.

    Seen are torch.save and safetensors.
    """

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


def watch_iterators(
    patches: Patches, clock: Callable[[], int], phases: PhaseClock, recorder: Recorder, evaluations: Evaluations
) -> None:
    """Record how long DataLoader.__iter__ takes, and tell `evaluations` when loaders are iterated.

    Workers are started in it, and a sampler drawn. This goes on top of what watches the loaders, which numbers their
    iterators. Other threads than the one that trains are left out: it does not wait for them here.
    """
    begin = vars(DataLoader)["__iter__"]

    @functools.wraps(begin)
    def timed_iter(loader: DataLoader[Any]) -> Any:
        if phases.is_elsewhere():
            return begin(loader)
        evaluations.iterates()
        began_ns = clock()
        iterator = begin(loader)
        duration_ns = clock() - began_ns
        number = str(getattr(iterator, "dpdoctor_loader", ""))
        recorder.event("iterator", at_ns=began_ns, duration_ns=duration_ns, detail=number)
        return iterator

    patches.replace(DataLoader, "__iter__", timed_iter)


class CompileEvents:
    """Records when torch.compile compiles, and how long: at the first call and, for a shape it has not seen, again.

    It listens to dynamo from the script's first torch.compile on; what is compiled inside of another is in that.
    """

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
        handler = _callback_handler()
        if handler is not None and self._begin not in handler.start_callbacks:
            handler.register_start_callback(self._begin)
            handler.register_end_callback(self._end)

    def _stop(self) -> None:
        handler = _callback_handler()
        if handler is not None and self._begin in handler.start_callbacks:
            handler.remove_start_callback(self._begin)
            handler.remove_end_callback(self._end)

    def _begin(self, _: Any) -> None:
        self._began_ns = self._clock()

    def _end(self, what: Any) -> None:
        duration_ns = self._clock() - self._began_ns
        detail = f"{what.callback_trigger.name.lower()} {what.compile_id}"
        self._recorder.event("compile", at_ns=self._began_ns, duration_ns=duration_ns, detail=detail)


class Collections:
    """Records the pauses of Python's garbage collector, and the user's line that called gc.collect(), or what did."""

    def __init__(self, clock: Callable[[], int], recorder: Recorder) -> None:
        self._clock = clock
        self._recorder = recorder
        self._began_ns = 0
        self._called_at = ""

    def watch(self, patches: Patches) -> None:
        """See every collection from now on."""
        collect = gc.collect

        @functools.wraps(collect)
        def collect_and_tell(*args: Any, **options: Any) -> int:
            library = lines.package(sys._getframe(1).f_code.co_filename)
            self._called_at = f"{CALLED_BY if library else ''}{library}{CALLED_AT}{lines.caller()}"
            try:
                return collect(*args, **options)
            finally:
                self._called_at = ""

        patches.replace(gc, "collect", collect_and_tell)
        gc.callbacks.append(self._ran)
        patches.add("gc.callbacks", self._stop)

    def _ran(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_ns = self._clock()
            return
        duration_ns = self._clock() - self._began_ns
        if duration_ns >= LEAST_GC_NS:
            detail = f"generation {info['generation']}{self._called_at}"
            self._recorder.event("gc", duration_ns=duration_ns, detail=detail)

    def _stop(self) -> None:
        if self._ran in gc.callbacks:
            gc.callbacks.remove(self._ran)


def graph_breaks() -> int | None:
    """Return the breaks of the graph in all that was compiled so far, each once; None where nothing was."""
    if f"{_DYNAMO}.utils" not in sys.modules:
        return None
    counters = importlib.import_module(f"{_DYNAMO}.utils").counters
    frames = counters["frames"]
    # Frames are not counted with fullgraph=True, where a break is an error; graphs not where every frame broke.
    if not frames["total"] and not counters["stats"]["unique_graphs"]:
        return None
    # A break inside of a loop gives up the whole frame, and counts as that alone.
    return int(sum(counters["graph_break"].values()) + frames["total"] - frames["ok"])


def _callback_handler() -> Any:
    """Return dynamo's; None while nobody imported it."""
    return importlib.import_module(f"{_DYNAMO}.callback").callback_handler if _DYNAMO in sys.modules else None
