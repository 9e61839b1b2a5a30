from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dpdoctor.worker import environment, setup
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.setup import Seeding, seed_all


def test_the_place_is_what_was_announced() -> None:
    os.environ.update(RANK="3", LOCAL_RANK="1", WORLD_SIZE="4")
    assert setup.place() == setup.Place(rank=3, local_rank=1, world_size=4)
    environment.hide_launcher()
    assert setup.place() == setup.Place(rank=0, local_rank=0, world_size=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own name")
def test_a_cpu_is_named_with_its_threads() -> None:
    assert setup.device_name(1).startswith("CPU (")
    assert setup.device_name(1).endswith("), 1 thread")
    assert setup.device_name(8).endswith("), 8 threads")
    assert setup.devices() == ()


def test_a_gpu_is_named_by_its_number_with_the_memory_that_this_process_has_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = ["1-2", "MIG-3-4"]
    of = [SimpleNamespace(name="Example", uuid=number, total_memory=20_000) for number in numbers]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(of))
    monkeypatch.setattr(torch.cuda, "get_device_properties", of.__getitem__)
    assert [(device.uuid, device.memory_bytes) for device in setup.devices()] == [
        ("GPU-1-2", 20_000),
        ("MIG-3-4", 20_000),
    ]


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(1)), float(np.random.random()), random.random()


@pytest.fixture
def seeding() -> Iterator[Seeding]:
    found, patches = Seeding(1), Patches()
    found.watch(patches)
    yield found
    patches.undo()


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_seeds_make_all_random_numbers_repeat(seed: int) -> None:
    seed_all(seed)
    first = drawn()
    assert drawn() != first
    seed_all(seed)
    assert drawn() == first


def test_what_a_script_seeds_is_its_own(seeding: Seeding) -> None:
    assert seeding.unseeded == ("torch", "numpy", "random")
    torch.manual_seed(3)
    random.seed(3)
    assert seeding.unseeded == ("numpy",)
    assert torch.initial_seed() == 3


def test_a_script_may_call_what_seeds_by_its_other_name(seeding: Seeding) -> None:
    torch.random.manual_seed(3)
    assert seeding.unseeded == ("numpy", "random")


SCRIPTED = """
import sys
import torch
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.setup import Seeding
Seeding(0).watch(Patches())
sys.path[:0] = sys.argv[1:]
from scripted import draw
import torch._dynamo
print(torch.jit.script(draw)(torch.ones(1)) == torch.jit.script(draw)(torch.ones(1)))
"""


def test_torch_still_knows_its_own_function_when_dynamo_is_loaded_later(tmp_path: Path) -> None:
    source = "import torch\n\ndef draw(x: torch.Tensor):\n    torch.manual_seed(1)\n    return torch.rand_like(x)\n"
    (tmp_path / "scripted.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPTED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("tensor([True])\n", 0), done.stderr


SEEDED = """
import torch
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.setup import Seeding
seeding = Seeding(0)
seeding.watch(Patches())
import torch._dynamo
exec("import torch; torch.manual_seed(1)", {"__name__": "torch.utils.data"})
print(seeding.unseeded)
torch.manual_seed(1)
print(seeding.unseeded)
"""


def test_what_a_script_seeds_when_dynamo_is_loaded_is_its_own() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SEEDED], capture_output=True, text=True, check=False)
    assert done.stdout == "('torch', 'numpy', 'random')\n('numpy', 'random')\n", done.stderr


def test_what_dpdoctor_and_torch_seed_is_not_the_scripts(seeding: Seeding) -> None:
    seed_all(5)
    exec("import random; random.seed(1)", {"__name__": "dpdoctor.worker.data.loaders"})
    exec("import torch; torch.manual_seed(1)", {"__name__": "torch.utils.data"})
    assert len(seeding.unseeded) == 3


def test_states_tell_what_was_drawn_of_what_the_script_seeds(seeding: Seeding) -> None:
    assert seeding.states() == {}
    for sow in (torch.manual_seed, np.random.seed, random.seed):
        sow(3)
    before = seeding.states()
    assert set(before) == {"torch", "numpy", "random"}
    assert seeding.states() == before
    np.random.random()
    random.random()
    assert [name for name, state in seeding.states().items() if state != before[name]] == ["numpy", "random"]
    np.random.seed(3)
    assert seeding.states()["numpy"] == before["numpy"]


def test_states_tell_of_generators_that_the_script_makes_from_a_seed(seeding: Seeding) -> None:
    np.random.default_rng()
    assert seeding.states() == {}
    generator = np.random.default_rng(3)
    before = seeding.states()
    assert list(before) == ["numpy.random.default_rng"]
    assert np.random.default_rng(generator) is generator
    assert seeding.states() == before
    generator.integers(10)
    assert seeding.states() != before


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.randint(1, 10**6),
        lambda: random.randrange(10**6),
        lambda: random.getrandbits(30),
        lambda: int(np.random.randint(10**6)),
    ],
    ids=["randint", "randrange", "getrandbits", "numpy"],
)
def test_a_seed_that_the_script_drew_is_no_number_of_its_own(seeding: Seeding, draw: Callable[[], int]) -> None:
    number = draw()
    for sow in (random.seed, np.random.seed, torch.manual_seed, np.random.default_rng):
        sow(number)
    assert len(seeding.unseeded) == 3
    assert seeding.states() == {}
    torch.manual_seed(number + 1)
    assert seeding.unseeded == ("numpy", "random")


def test_a_seed_drawn_from_what_the_script_seeds_is_its_own(seeding: Seeding) -> None:
    random.seed(3)
    torch.manual_seed(random.randint(1, 10**6))
    assert seeding.unseeded == ("numpy",)


@pytest.mark.usefixtures("seeding")
def test_what_is_drawn_is_seen_until_there_is_a_model() -> None:
    draw = random.randint
    assert pickle.loads(pickle.dumps(draw)) is draw
    nn.Linear(1, 1)
    assert random.randint is not draw
    assert random.randint == random._inst.randint  # type: ignore[attr-defined]


@pytest.mark.usefixtures("seeding")
def test_a_forked_process_draws_apart_from_those_of_other_ranks() -> None:
    np.random.seed(3)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send(drawn()))
    process.start()
    apart = receiver.recv()
    process.join()
    assert [one == other for one, other in zip(apart, drawn(), strict=True)] == [False, True, False]


def test_only_what_is_named_is_drawn_apart(seeding: Seeding) -> None:
    seed_all(5)
    alike = drawn()
    seed_all(5)
    seeding.draw_apart(("random",))
    mine = drawn()
    assert mine[:2] == alike[:2]
    assert mine[2] != alike[2]
    assert seeding.is_apart


def test_the_largest_seed_is_followed_by_the_first(seeding: Seeding) -> None:
    torch.manual_seed(-1)
    seeding.draw_apart()
    mine = drawn()
    seed_all(0)
    assert mine == drawn()


def test_what_was_drawn_and_nobody_seeded_is_known(seeding: Seeding) -> None:
    np.random.seed(3)
    assert seeding.used() == ()
    random.random()
    np.random.random()
    assert seeding.used() == ("random",)


def test_what_fills_weights_picks_no_samples_and_what_was_drawn_beside_it_may(seeding: Seeding) -> None:
    nn.TransformerEncoderLayer(4, 2, 4)
    with FakeTensorMode():
        nn.Linear(2, 2)
    with seeding.passing_over():
        torch.rand(1)
    assert seeding.used() == ()
    torch.rand(1)
    nn.Linear(2, 2)
    assert seeding.used() == ("torch",)


def drawing_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in that folder which draws a number when it is imported."""
    folder.mkdir()
    (folder / "drawing_module.py").write_text("import random\nrandom.random()\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "drawing_module", raising=False)
    return "drawing_module"


@pytest.mark.parametrize(("folder", "used"), [("site-packages", ()), ("project", ("random",))])
def test_what_an_installed_module_draws_when_it_is_imported_is_not_the_scripts(
    seeding: Seeding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, used: tuple[str, ...]
) -> None:
    importlib.import_module(drawing_module(tmp_path / folder, monkeypatch))
    assert seeding.used() == used
    random.random()
    assert seeding.used() == ("random",)


def test_a_module_may_be_imported_while_torch_traces(
    seeding: Seeding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeTensorMode():
        importlib.import_module(drawing_module(tmp_path / "site-packages", monkeypatch))
    assert seeding.used() == ()


@pytest.mark.usefixtures("seeding")
@pytest.mark.parametrize("folder", ["site-packages", "project"])
def test_who_imports_a_module_is_warned_by_it_and_finds_its_line_next_in_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    source = tmp_path / folder / "failing_module.py"
    source.write_text("import warnings\nwarnings.warn('old', stacklevel=2)\n1 / 0\n")
    monkeypatch.syspath_prepend(source.parent)
    with pytest.warns(UserWarning, match="old") as warned, pytest.raises(ZeroDivisionError) as raised:
        import failing_module  # type: ignore[import-not-found] # noqa: F401
    assert [warning.filename for warning in warned] == [__file__]
    assert [str(entry.path) for entry in raised.traceback] == [__file__, str(source)]
