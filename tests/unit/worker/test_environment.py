from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from dpdoctor.spec import TASK_VARIABLE
from dpdoctor.worker import environment
from dpdoctor.worker.base.patches import Patches
from tests.builders.rig import FailedError


def join_two() -> None:
    dist.init_process_group("gloo", rank=0, world_size=2)


def fail(reason: str) -> NoReturn:
    raise FailedError(reason)


def test_only_the_launchers_variables_are_hidden() -> None:
    hidden = [
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", TASK_VARIABLE),
        *("ROLE_RANK", "ROLE_WORLD_SIZE"),
    ]
    kept = ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MY_RANK", "RANKING", "MASTER_CONFIG", "ROLE_NAME"]
    os.environ.update(dict.fromkeys([*hidden, *kept], "1"))
    environment.hide_launcher()
    assert [name for name in hidden if name in os.environ] == []
    assert [name for name in kept if name in os.environ] == kept


@pytest.fixture
def grouped(tmp_path: Path, patches: Patches) -> Iterator[environment.Asked]:
    """Give a process group that is hidden from this file, as it is from a script."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    of_children = Patches(for_children=True)
    asked = environment.Asked()
    environment.hide_process_group(patches, of_children, fail, asked, "train.py")
    yield asked
    patches.undo()
    of_children.undo()
    dist.destroy_process_group()


@pytest.mark.usefixtures("grouped")
def test_a_script_finds_no_process_group_and_torch_finds_its_own() -> None:
    assert not dist.is_initialized()
    for ask in (dist.get_rank, dist.get_world_size):
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            ask()
    assert DistributedSampler([1, 2]).num_replicas == 1


class Asks(IterableDataset):
    """What code in a loader's worker hears of the group that it inherited."""

    def __iter__(self) -> Iterator[bool]:
        yield dist.is_initialized()


@pytest.mark.usefixtures("grouped")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_worker_finds_no_process_group_either(num_workers: int) -> None:
    assert list(DataLoader(Asks(), batch_size=None, num_workers=num_workers)) == [False]


def of_library(code: str, package: str = "logs") -> Callable[[], object]:
    """Return a function of a library that runs this code."""
    found: dict[str, Any] = {"__name__": f"{package}.ranks", "os": os, "dist": dist}
    exec(compile(f"def ask():\n    return {code}", f"/x/site-packages/{package}/ranks.py", "exec"), found)
    return cast("Callable[[], object]", found["ask"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda: not dist.is_initialized(),
        lambda: os.environ.get("RANK", "0"),
        lambda: os.getenv("LOCAL_RANK"),
        lambda: os.environb.get(b"RANK"),
        lambda: "WORLD_SIZE" in os.environ,
        lambda: os.environ.setdefault("MASTER_ADDR", "localhost"),
    ],
)
def test_the_line_that_asks_for_the_rank_is_known_and_stands_before_a_library(
    grouped: environment.Asked, ask: Callable[[], object]
) -> None:
    environment.hide_launcher()
    os.environ.get("NO_RANK")
    DistributedSampler([1, 2])
    assert grouped.by() == ""
    of_library("os.environ.get('RANK')")()
    assert re.fullmatch(rf"logs \({__file__}:\d+\)", grouped.by())
    ask()
    assert grouped.by() == f"{__file__}:{ask.__code__.co_firstlineno}"
    of_library("dist.is_initialized()")()
    assert grouped.by() == f"{__file__}:{ask.__code__.co_firstlineno}"


def test_a_library_that_merges_metrics_over_ranks_draws_no_samples(grouped: environment.Asked) -> None:
    of_library("dist.is_initialized()", "torchmetrics")()
    assert grouped.by() == ""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_worker_that_asks_for_the_rank_is_known(grouped: environment.Asked) -> None:
    list(DataLoader(Asks(), batch_size=None, num_workers=1))
    assert grouped.by() == f"{__file__}:{Asks.__iter__.__code__.co_firstlineno + 1}"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_was_forked_before_the_script_asked_leaves_its_line(grouped: environment.Asked) -> None:
    context = mp.get_context("fork")
    has_asked = context.Event()

    def ask_later() -> None:
        has_asked.wait()
        of_library("dist.is_initialized()")()

    process = context.Process(target=ask_later)
    process.start()
    dist.is_initialized()
    line = grouped.by()
    has_asked.set()
    process.join()
    assert line.startswith(f"{__file__}:")
    assert grouped.by() == line


@pytest.mark.usefixtures("grouped")
def test_the_environment_may_be_copied_and_changed() -> None:
    os.environ["SOME_NAME"] = "1"
    for copied in (os.environ.copy(), copy.deepcopy(os.environ), os.environ | {}):
        assert copied["SOME_NAME"] == "1"
        assert copied.get("RANK") is None
    assert os.environ.pop("SOME_NAME") == "1"
    assert "SOME_NAME" not in os.environ


@pytest.mark.usefixtures("grouped")
@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: dist.init_process_group("gloo"), r"torch\.distributed\.init_process_group"),
        (lambda: DistributedDataParallel(nn.Linear(1, 1)), "DistributedDataParallel"),
        (lambda: fsdp.fully_shard(nn.Linear(1, 1)), "fully_shard"),
        (lambda: mp.spawn(print, nprocs=2), r"torch\.multiprocessing\.spawn"),
        (lambda: mp.start_processes(print, nprocs=2), r"torch\.multiprocessing\.start_processes"),
    ],
)
def test_a_script_that_distributes_itself_is_named_with_its_line(act: object, said: str) -> None:
    assert callable(act)
    with pytest.raises(FailedError, match=f"distributes itself: .*{said} at {__file__}:"):
        act()


@pytest.mark.usefixtures("grouped")
def test_the_refusal_names_the_command_that_observes_the_script() -> None:
    with pytest.raises(FailedError, match=r"dpdoctor profile train\.py --modes native$"):
        mp.spawn(print, nprocs=2)
    with pytest.raises(FailedError, match=r"dpdoctor profile train\.py --modes native --nproc 2$"):
        dist.init_process_group("gloo")
    with pytest.raises(FailedError, match=r"init_process_group, as one of 4 ranks, at .* --modes native$"):
        dist.init_process_group("gloo", rank=0, world_size=4)  # nobody told it: it starts the others
    with pytest.raises(FailedError, match=r"init_process_group at .* --modes native --nproc 2$"):
        dist.init_process_group("gloo", rank=0, world_size=1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused_a_group_and_the_one_that_forked_it_knows_why(
    patches: Patches, tmp_path: Path
) -> None:
    of_children = Patches(for_children=True)
    try:
        refusal = environment.ChildRefusal(of_children, tmp_path, "train.py")
        environment.hide_process_group(patches, of_children, fail, environment.Asked(), "train.py")
        assert refusal.reason is None
        process = mp.get_context("fork").Process(target=join_two)
        process.start()
        process.join()
    finally:
        patches.undo()
        of_children.undo()
    assert process.exitcode == 1
    assert refusal.reason is not None
    assert re.search(
        r"distributes itself: .*init_process_group, as one of 2 ranks, at .* --modes native$", refusal.reason
    )


def test_a_new_interpreter_is_refused_a_group_of_several_ranks_alone(patches: Patches, tmp_path: Path) -> None:
    refusal = environment.ChildRefusal(patches, tmp_path, "-m pkg.launch")
    meets = tmp_path / "meets.py"
    meets.write_text(
        "import sys, torch.distributed as dist\n"
        "size, rank = map(int, sys.argv[1:])\n"
        "dist.init_process_group('gloo', init_method=f'file://{__file__}.{size}', rank=rank, world_size=size)\n"
    )
    for size, said in ((1, None), (2, f"init_process_group, as one of 2 ranks, at {meets}:3. ")):
        ranks = [subprocess.Popen([sys.executable, meets, str(size), str(rank)]) for rank in range(size)]
        assert [rank.wait() != 0 for rank in ranks] == [said is not None] * size
        assert refusal.reason is None if said is None else said in (refusal.reason or "")
    assert (refusal.reason or "").endswith("dpdoctor profile -m pkg.launch --modes native")


def test_a_script_that_wants_to_know_its_rank_distributes_itself() -> None:
    environment.hide_launcher()
    with pytest.raises(KeyError) as raised:
        os.environ["LOCAL_RANK"]
    told = environment.looked_for_rank(raised.value, "train.py:3", "train.py")
    assert told is not None
    assert told.startswith("the script distributes itself: it reads LOCAL_RANK of its environment at train.py:3")
    for table, name in (({}, "RANK"), (os.environ, "NOT_A_RANK")):
        with pytest.raises(KeyError) as raised:
            table[name]
        assert environment.looked_for_rank(raised.value, "train.py:3", "train.py") is None
