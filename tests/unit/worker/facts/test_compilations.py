from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dpdoctor import rundir
from dpdoctor.records import EventRecord
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.facts.compilations import CompileEvents, graph_breaks
from dpdoctor.worker.timing.recorder import Recorder
from tests.builders.handclock import HandClock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def recorder(tmp_path: Path, clock: HandClock, patches: Patches) -> Iterator[Recorder]:
    """Give the recorder of a script whose compilations are seen, with nothing compiled yet."""
    import torch._dynamo

    torch._dynamo.reset()
    made = Recorder(tmp_path, clock)
    CompileEvents(clock, made).watch(patches)
    yield made
    made.close()
    patches.undo()
    torch._dynamo.reset()


def details(recorder: Recorder, directory: Path) -> list[tuple[int, str]]:
    recorder.flush()
    events = rundir.read_lines(directory / rundir.EVENTS, EventRecord)
    return [(event.duration_ns, event.detail) for event in events if event.kind == "compile"]


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


def test_a_script_that_makes_dynamo_forget_is_heard_again(recorder: Recorder, tmp_path: Path) -> None:
    for _ in range(2):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        torch._dynamo.reset()
    assert [detail for _, detail in details(recorder, tmp_path)] == ["dynamo 0/0"] * 2


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


def test_a_script_that_compiles_nothing_does_not_pay_for_dynamo() -> None:
    code = (
        "import sys, time, pathlib, tempfile\n"
        "from dpdoctor.worker import rank\n"
        "from dpdoctor.worker.facts.compilations import CompileEvents\n"
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
