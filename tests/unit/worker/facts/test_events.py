from __future__ import annotations

import gc
import inspect
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor import rundir
from dpdoctor.records import CALLED_AT, CALLED_BY, EventRecord
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.facts.events import (
    EVALUATION,
    LEAST_GC_NS,
    Checkpoints,
    Collections,
    CompileEvents,
    Evaluations,
    graph_breaks,
    watch_iterators,
)
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder
from tests.builders.handclock import HandClock
from tests.builders.rig import Rig


class Script:
    """A script that takes 10 ticks for a batch, 100 for a forward, 1 for everything else.

    `passes` are the evaluations, `inferences` the other passes without gradients, as found.
    """

    def __init__(self) -> None:
        self.clock = HandClock(1)
        self.passes: list[tuple[int, int]] = []
        self.inferences: list[tuple[int, int]] = []
        self.watched = Evaluations(self.clock, self.ended)

    def ended(self, kind: str, begin_ns: int, end_ns: int) -> None:
        (self.passes if kind == EVALUATION else self.inferences).append((begin_ns, end_ns))

    def iterate(self) -> int:
        """Begin to iterate a loader; return when."""
        now = self.clock()
        self.watched.iterates()
        self.clock.tick(1)
        return now

    def fetch(self, iterator: int = 0) -> int:
        now = self.clock()
        self.watched.fetches(iterator)
        self.clock.tick(10)
        return now

    def run_out(self, iterator: int = 0) -> int:
        """Ask once more and be told that there is nothing left."""
        now = self.clock()
        self.watched.fetches(iterator)
        self.watched.ran_out(iterator)
        return now

    def look(self, *, with_gradients: bool = False) -> int:
        """Call the model without training it, in eval mode when it has gradients; return when it was done."""
        self.watched.forward(with_gradients=with_gradients)
        self.clock.tick(100)
        return self.clock()

    def train(self) -> None:
        self.watched.trains()
        self.clock.tick(100)
        self.watched.backward()
        self.clock.tick(1)

    def tune_in_eval_mode(self) -> None:
        self.look(with_gradients=True)
        self.watched.backward()
        self.clock.tick(1)


@pytest.fixture
def script() -> Script:
    """Give a script that has trained for a step."""
    made = Script()
    made.iterate()
    made.fetch()
    made.train()
    return made


def test_an_evaluation_lasts_from_its_loader_to_the_one_that_is_trained_on(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        for _ in range(3):
            script.fetch()
            script.look()
    script.clock.tick(7)
    end = script.iterate()
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_evaluations_one_after_the_other_are_one(script: Script) -> None:
    begin = script.clock()
    for _ in range(2):
        with torch.inference_mode():
            script.iterate()
            script.fetch()
            script.look()
    end = script.fetch()
    script.train()
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_a_loop_that_is_left_with_gradients_on_begins_with_its_first_forward(script: Script) -> None:
    script.iterate()
    script.fetch()
    begin = script.clock()
    with torch.no_grad():
        script.look()
    script.fetch()
    with torch.no_grad():
        last = script.look()
    assert script.run_out() == last
    script.iterate()
    script.fetch()
    script.train()
    assert script.passes == [(begin, last)]


def test_what_is_saved_after_it_is_no_part_of_it(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        script.fetch()
        end = script.look()
    script.watched.leaves()
    script.clock.tick(1000)
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_one_that_the_script_ends_with_counts(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        script.fetch()
        end = script.look()
    script.watched.trains()
    script.watched.trains()
    assert script.passes == [(begin, end)]


def test_forwards_without_gradients_inside_a_training_step_are_none(script: Script) -> None:
    # A generator's sample for its critic; a pseudo-label of the batch that is then trained on.
    for _ in range(3):
        script.fetch()
        with torch.no_grad():
            script.look()
            script.look()
        script.train()
    assert script.passes == []


def test_a_loader_that_is_looked_through_without_the_model_is_none(script: Script) -> None:
    with torch.no_grad():
        script.iterate()
        script.fetch()
    script.fetch()
    script.train()
    assert script.passes == []


@pytest.mark.parametrize("to_its_end", [True, False])
@pytest.mark.parametrize("has_trained", [True, False])
def test_one_batch_after_the_other_is_for_a_model_that_is_not_seen_unless_nothing_has_trained(
    has_trained: bool, to_its_end: bool
) -> None:
    script = Script()
    if has_trained:
        script.train()
    with torch.no_grad():
        begin = script.iterate()
        for _ in range(3):
            script.fetch()
            script.clock.tick(100)
        if to_its_end:
            script.run_out()
    script.clock.tick(7)
    end = script.fetch()
    script.train()
    assert script.passes == ([(begin, end)] if has_trained else [])
    script.fetch()
    script.train()
    assert len(script.passes) == has_trained


def test_without_any_loader_nobody_knows_what_forwards_without_gradients_are_for() -> None:
    # A rollout, of which the last forward is followed by steps of the environment and the computing of advantages.
    script, found = Script(), []
    script.train()
    for number in (1, 3):
        begin = script.clock()
        with torch.no_grad():
            for _ in range(number):
                script.look()
        script.clock.tick(7)
        found.append((begin, script.clock()))
        script.train()
    assert script.passes == []
    assert script.inferences == found


def test_a_rollout_whose_samples_a_loader_gives_out_is_no_evaluation(script: Script) -> None:
    begin = script.clock()
    with torch.no_grad():
        for _ in range(3):
            script.look()
    end = script.iterate()
    script.fetch()
    script.train()
    assert (script.passes, script.inferences) == ([], [(begin, end)])


def test_pseudo_labels_for_batches_of_several_loaders_are_no_evaluation(script: Script) -> None:
    for _ in range(2):
        for iterator in (1, 2):
            script.fetch(iterator)
            with torch.no_grad():
                script.look()
        script.fetch(3)
        script.train()
    assert script.passes == []
    assert len(script.inferences) == 2


def test_text_that_is_generated_from_a_batch_of_the_training_is_no_evaluation(script: Script) -> None:
    for _ in range(2):
        script.fetch()
        begin = script.clock()
        with torch.no_grad():
            for _ in range(5):
                script.look()
        end = script.clock()
        script.train()
    assert script.passes == []
    assert script.inferences[-1] == (begin, end)


def test_an_evaluation_of_a_single_batch_is_one(script: Script) -> None:
    script.iterate()
    script.fetch()
    begin = script.clock()
    with torch.no_grad():
        last = script.look()
    script.run_out()
    script.fetch()
    script.train()
    assert (script.passes, script.inferences) == ([(begin, last)], [])


def test_it_is_on_until_the_script_turns_to_something_else(script: Script) -> None:
    assert not script.watched.is_on
    with torch.no_grad():
        script.look()
        assert script.watched.is_on
    script.iterate()
    assert not script.watched.is_on


def test_it_is_on_while_a_loader_is_read_for_another_model(script: Script) -> None:
    with torch.no_grad():
        script.fetch()
    assert script.watched.is_on
    script.fetch()
    assert not script.watched.is_on
    with torch.no_grad():
        script.fetch()
    script.train()
    assert not script.watched.is_on


def test_with_gradients_left_on_an_evaluation_is_one(script: Script) -> None:
    script.iterate()
    script.fetch()
    begin = script.clock()
    script.look(with_gradients=True)
    script.fetch()
    end = script.look(with_gradients=True)
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_a_model_that_is_tuned_in_eval_mode_does_not_evaluate(script: Script) -> None:
    for _ in range(3):
        script.fetch()
        script.tune_in_eval_mode()
    assert script.passes == []


def test_an_evaluation_of_a_model_that_is_tuned_in_eval_mode_is_one(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        script.fetch()
        end = script.look()
    assert script.fetch() == end
    script.tune_in_eval_mode()
    script.fetch()
    script.tune_in_eval_mode()
    assert script.passes == [(begin, end)]


SAVE_NS = 5_000_000


class Slow:
    """Takes SAVE_NS to pickle."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock

    def __reduce__(self) -> Any:
        self.clock.tick(SAVE_NS)
        return int, ()


class WatchedSaves:
    """Saves that are watched; `passes` are the evaluations that ended."""

    def __init__(self, directory: Path, patches: Patches) -> None:
        self.clock = HandClock(1)
        self.phases = PhaseClock(self.clock)
        self.recorder = Recorder(directory, self.clock)
        self.passes: list[tuple[str, int, int]] = []
        self.evaluations = Evaluations(self.clock, lambda *ended: self.passes.append(ended))
        self._directory = directory
        Checkpoints(self.clock, self.phases, self.recorder, self.evaluations).watch(patches)

    def events(self) -> list[tuple[int, int, str]]:
        self.recorder.flush()
        path = self._directory / rundir.EVENTS
        events = rundir.read_lines(path, EventRecord) if path.exists() else ()
        return [(e.at_ns, e.duration_ns, e.detail) for e in events if e.kind == "checkpoint"]


@pytest.fixture
def saves(tmp_path: Path, patches: Patches) -> WatchedSaves:
    return WatchedSaves(tmp_path, patches)


def test_a_save_is_timed_and_named_by_its_file(saves: WatchedSaves, tmp_path: Path) -> None:
    torch.save(Slow(saves.clock), tmp_path / "epoch-1.pt")
    torch.serialization.save(Slow(saves.clock), f=str(tmp_path / "hf_abcdefghijklmnopqrstuv.pt"))
    with (tmp_path / "open.pt").open("wb") as file:
        torch.save(Slow(saves.clock), file)
    assert saves.events() == [
        (1, SAVE_NS, "epoch-1.pt"),
        (1 + SAVE_NS, SAVE_NS, "<redacted>.pt"),
        (1 + 2 * SAVE_NS, SAVE_NS, "open.pt"),
    ]
    assert torch.load(tmp_path / "epoch-1.pt", weights_only=False) == 0


def test_what_stays_in_memory_is_no_checkpoint(saves: WatchedSaves) -> None:
    torch.save(Slow(saves.clock), io.BytesIO())
    assert saves.events() == []


def test_only_the_outermost_save_counts(saves: WatchedSaves, tmp_path: Path) -> None:
    class Nested:
        def __reduce__(self) -> Any:
            torch.save(Slow(saves.clock), tmp_path / "inner.pt")
            return int, ()

    torch.save(Nested(), tmp_path / "outer.pt")
    assert saves.events() == [(1, SAVE_NS, "outer.pt")]


def test_a_save_that_fails_took_its_time_and_the_next_one_counts(saves: WatchedSaves, tmp_path: Path) -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            saves.clock.tick(7)
            raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        torch.save(Refuses(), tmp_path / "a.pt")
    torch.save(Slow(saves.clock), tmp_path / "b.pt")
    assert [(duration, name) for _, duration, name in saves.events()] == [(7, "a.pt"), (SAVE_NS, "b.pt")]


def test_a_thread_that_saves_beside_training_holds_nobody_up(saves: WatchedSaves, tmp_path: Path) -> None:
    saves.phases.belongs_here()
    thread = threading.Thread(target=torch.save, args=(Slow(saves.clock), tmp_path / "beside.pt"))
    thread.start()
    thread.join()
    assert saves.events() == []


def test_an_evaluation_ends_where_a_save_begins(saves: WatchedSaves, tmp_path: Path) -> None:
    with torch.no_grad():
        saves.evaluations.iterates()
        saves.evaluations.fetches()
        saves.evaluations.forward()
    saves.clock.tick(100)
    torch.save(Slow(saves.clock), tmp_path / "best.pt")
    saves.evaluations.trains()
    assert saves.passes == [("evaluation", 1, 101)]


def test_safetensors_are_checkpoints_too(tmp_path: Path, patches: Patches) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    saves = WatchedSaves(tmp_path, patches)
    safetensors.save_model(torch.nn.Linear(2, 2), str(tmp_path / "model.safetensors"))
    assert [name for _, _, name in saves.events()] == ["model.safetensors"]


LOADER = DataLoader(TensorDataset(torch.zeros(4, 3)), batch_size=2)


class SlowSampler(torch.utils.data.Sampler[int]):
    """Takes 50 ticks to begin."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        self.rig.clock.tick(50)
        return 4


class WatchedLoaders:
    """Loaders that are watched; `passes` are the evaluations that ended."""

    def __init__(self, rig: Rig, patches: Patches, directory: Path) -> None:
        self.rig, self._directory = rig, directory
        self.recorder = Recorder(directory, rig.clock)
        self.passes: list[tuple[str, int, int]] = []
        self.evaluations = rig.loaders.evaluations = Evaluations(rig.clock, lambda *ended: self.passes.append(ended))
        watch_iterators(patches, rig.clock, rig.phases, self.recorder, self.evaluations)

    def events(self) -> list[EventRecord]:
        self.recorder.flush()
        return [e for e in rundir.read_lines(self._directory / rundir.EVENTS, EventRecord) if e.kind == "iterator"]


@pytest.fixture
def loaders(rig: Rig, patches: Patches, tmp_path: Path) -> WatchedLoaders:
    return WatchedLoaders(rig, patches, tmp_path)


def test_beginning_to_iterate_is_timed_with_the_loaders_number(loaders: WatchedLoaders) -> None:
    slow = DataLoader(TensorDataset(torch.zeros(4, 3)), sampler=SlowSampler(loaders.rig))
    for loader in (LOADER, slow, LOADER):
        begin = loaders.rig.clock()
        assert len(list(loader)) in (2, 4)
    first, second, third = loaders.events()
    assert [event.detail for event in (first, second, third)] == ["0", "1", "0"]
    assert (first.duration_ns, third.duration_ns) == (0, 0)
    assert second.duration_ns >= 50
    assert third.at_ns == begin


def test_what_another_thread_iterates_holds_nobody_up(loaders: WatchedLoaders) -> None:
    loaders.rig.phases.belongs_here()
    thread = threading.Thread(target=list, args=(LOADER,))
    thread.start()
    thread.join()
    list(LOADER)
    assert len(loaders.events()) == 1


def test_evaluations_are_told_of_loaders(loaders: WatchedLoaders) -> None:
    with torch.no_grad():
        begin = loaders.rig.clock()
        for _ in LOADER:
            loaders.evaluations.forward()
            loaders.rig.clock.tick(10)
    end = loaders.rig.clock()
    next(iter(LOADER))
    loaders.rig.clock.tick(100)
    loaders.evaluations.trains()
    assert loaders.passes == [("evaluation", begin, end)]


@pytest.fixture
def recorder(tmp_path: Path, clock: HandClock, patches: Patches) -> Iterator[Recorder]:
    """Give the recorder of a script whose compilations are seen, with nothing compiled yet."""
    import torch._dynamo

    torch._dynamo.reset()
    made = Recorder(tmp_path, clock)
    CompileEvents(clock, made).watch(patches)
    yield made
    patches.undo()
    torch._dynamo.reset()


def details(recorder: Recorder, directory: Path) -> list[tuple[int, str]]:
    recorder.flush()
    events = rundir.read_lines(directory / rundir.EVENTS, EventRecord)
    return [(event.duration_ns, event.detail) for event in events if event.kind == "compile"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_first_call_compiles_and_a_new_shape_compiles_again(
    recorder: Recorder, tmp_path: Path, clock: HandClock
) -> None:
    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        clock.tick(50)
        return graph

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    for size in (4, 4, 6, 6, 8):
        compiled(torch.ones(size))
    assert details(recorder, tmp_path) == [(50, "dynamo 0/0"), (50, "dynamo 0/1")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_that_makes_dynamo_forget_is_heard_again(recorder: Recorder, tmp_path: Path) -> None:
    for _ in range(2):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        torch._dynamo.reset()
    assert [detail for _, detail in details(recorder, tmp_path)] == ["dynamo 0/0"] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("recorder")
def test_afterwards_nobody_listens(patches: Patches) -> None:
    from torch._dynamo.callback import callback_handler

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert callback_handler.start_callbacks
    assert callback_handler.end_callbacks
    patches.undo()
    patches.undo()
    assert not callback_handler.start_callbacks
    assert not callback_handler.end_callbacks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_that_compiles_nothing_does_not_pay_for_dynamo() -> None:
    code = (
        "import sys, time, pathlib, tempfile\n"
        "from dpdoctor.worker import rank\n"
        "from dpdoctor.worker.facts.events import CompileEvents\n"
        "from dpdoctor.worker.base.patches import Patches\n"
        "patches = Patches()\n"
        "CompileEvents(time.monotonic_ns, None).watch(patches)\n"
        "patches.undo()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def unbroken(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def broken_once(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def broken_twice(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    """Break the graph where dynamo gives the whole frame up."""
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestGraphBreaks:
    @pytest.fixture(autouse=True)
    def nothing_compiled(self) -> Iterator[None]:
        """Let dynamo forget what other tests compiled."""
        import torch._dynamo.utils

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        yield
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

    @pytest.mark.parametrize(
        ("work", "num_breaks"), [(unbroken, 0), (broken_once, 1), (broken_twice, 2), (in_a_loop, 1)]
    )
    def test_each_break_counts_once(self, work: Callable[[torch.Tensor], torch.Tensor], num_breaks: int) -> None:
        compiled = torch.compile(work, backend="eager")
        for _ in range(3):
            compiled(torch.ones(2))
        assert graph_breaks() == num_breaks

    def test_one_whole_graph_has_none(self) -> None:
        torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(2))
        assert graph_breaks() == 0

    def test_where_nothing_was_compiled_there_is_nothing_to_count(self) -> None:
        assert graph_breaks() is None


class Garbage:
    """Takes its time when it is collected: a cycle, so that only the garbage collector frees it."""

    def __init__(self, clock: HandClock, pause_ns: int) -> None:
        self.clock, self.pause_ns, self.itself = clock, pause_ns, self

    def __del__(self) -> None:
        self.clock.tick(self.pause_ns)


@pytest.fixture
def collections(tmp_path: Path, clock: HandClock, patches: Patches) -> Recorder:
    """Give what keeps the pauses of the garbage collector."""
    gc.collect()
    recorder = Recorder(tmp_path, clock)
    Collections(clock, recorder).watch(patches)
    return recorder


def paused(recorder: Recorder, directory: Path) -> list[tuple[int, str]]:
    """Return how long each pause took that was kept, and its detail."""
    recorder.flush()
    path = directory / rundir.EVENTS
    events = rundir.read_lines(path, EventRecord) if path.exists() else ()
    assert all(event.kind == "gc" for event in events)
    return [(event.duration_ns, event.detail) for event in events]


@pytest.mark.parametrize(("pause_ns", "kept"), [(LEAST_GC_NS - 1, 0), (LEAST_GC_NS, 1)])
def test_long_pauses_of_the_garbage_collector_are_events_with_the_line_that_calls_it(
    collections: Recorder, tmp_path: Path, clock: HandClock, pause_ns: int, kept: int
) -> None:
    Garbage(clock, pause_ns)
    found = gc.collect(1)
    line = inspect.currentframe().f_lineno - 1
    assert found > 0
    assert paused(collections, tmp_path) == [(pause_ns, f"generation 1{CALLED_AT}{__file__}:{line}")] * kept


def test_a_library_that_calls_the_collector_is_named_with_the_line_that_calls_it(
    collections: Recorder, tmp_path: Path, clock: HandClock
) -> None:
    loop: dict[str, Any] = {"gc": gc}
    exec(compile("def run(): gc.collect()", "/venv/lib/site-packages/acme/loop.py", "exec"), loop)
    Garbage(clock, LEAST_GC_NS)
    loop["run"]()
    line = inspect.currentframe().f_lineno - 1
    assert paused(collections, tmp_path) == [(LEAST_GC_NS, f"generation 2{CALLED_BY}acme{CALLED_AT}{__file__}:{line}")]


def test_the_collector_that_runs_by_itself_has_no_line(collections: Recorder, tmp_path: Path, clock: HandClock) -> None:
    gc.collect()
    Garbage(clock, LEAST_GC_NS)
    held: list[list[int]] = []
    while not paused(collections, tmp_path):
        held.append([])
    assert paused(collections, tmp_path) == [(LEAST_GC_NS, "generation 0")]


def test_taken_away_it_hears_no_more_pauses(
    collections: Recorder, tmp_path: Path, clock: HandClock, patches: Patches
) -> None:
    patches.undo()
    Garbage(clock, 10 * LEAST_GC_NS)
    gc.collect()
    assert paused(collections, tmp_path) == []
    assert inspect.isbuiltin(gc.collect)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("collections")
def test_a_forked_process_does_not_listen() -> None:
    def listens() -> bool:
        return any("Collections" in repr(callback) for callback in gc.callbacks)

    assert listens()
    pid = os.fork()
    if pid == 0:
        os._exit(listens())
    assert os.waitpid(pid, 0)[1] == 0
