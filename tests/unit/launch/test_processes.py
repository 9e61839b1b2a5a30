from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.launch import processes
from dpdoctor.launch.processes import RankProcess
from dpdoctor.spec import DEVICE_IDS_VARIABLE, TASK_VARIABLE, WorkerTask
from tests.unit.launch.conftest import Start, lives, task_in, until

# Says where it is, ignores every polite request, and has a child that does so too.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def printed(process: RankProcess) -> str:
    return (process.directory / rundir.STDOUT).read_text()


def test_a_rank_starts_in_the_launchs_directory_with_logs_of_its_own(start: Start, tmp_path: Path) -> None:
    process = start("import os, sys; print(os.getcwd(), os.getsid(0) == os.getpid()); print('oh', file=sys.stderr)")
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == 0
    assert process.directory == tmp_path / "rank0"
    assert printed(process) == f"{tmp_path} True\n"
    assert (process.directory / rundir.STDERR).read_text() == "oh\n"
    assert process.log_bytes() == len(printed(process)) + 3


def test_signals_reach_a_rank_and_a_dead_one_takes_no_notice(start: Start) -> None:
    process = start("print('here', flush=True); import time; time.sleep(60)")
    until(lambda: "here" in printed(process))
    process.send(signal.SIGUSR2)
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == -signal.SIGUSR2
    process.send(signal.SIGUSR2)
    process.kill_all()


def test_a_rank_that_listens_ends_by_itself(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 30.0)
    polite = start(
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(1, flush=True)\n"
        "import time; time.sleep(60)"
    )
    gone = start("")
    until(lambda: bool(printed(polite)) and gone.exit_code() is not None)
    processes.end([polite, gone])
    assert (polite.exit_code(), polite.ended_by_us) == (7, True)
    assert (gone.exit_code(), gone.ended_by_us) == (0, False)


def test_nothing_survives_the_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.05)
    process = start(STUBBORN)
    until(lambda: printed(process).strip().isdigit())
    grandchild = int(printed(process))
    assert lives(grandchild)
    processes.end([process])
    assert process.exit_code() == -signal.SIGKILL
    until(lambda: not lives(grandchild))


def test_what_a_rank_left_behind_is_killed_too(start: Start) -> None:
    process = start(STUBBORN.replace("time.sleep(60)\n", "os._exit(0)\n"))
    until(lambda: process.exit_code() is not None)
    until(lambda: not lives(int(printed(process))))
    assert not lives(int(printed(process)))


def environment(tmp_path: Path, rank: int = 1, **task: object) -> dict[str, str]:
    return processes._environment(task_in(tmp_path, **task), rank)  # type: ignore[arg-type]


def test_the_environment_says_which_rank_it_is(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert {name: found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert msgspec.json.decode(found[TASK_VARIABLE], type=WorkerTask) == task_in(tmp_path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("src", ["{here}/src"]),
        ("/abs:src", ["/abs", "{here}/src"]),
        (":/abs", ["{here}", "/abs"]),
        ("", None),
    ],
)
def test_relative_import_paths_keep_their_meaning(tmp_path: Path, given: str, expected: list[str] | None) -> None:
    os.chdir(tmp_path)
    os.environ["PYTHONPATH"] = given
    wanted = ":".join(expected).format(here=tmp_path) if expected else ""
    assert environment(tmp_path)["PYTHONPATH"] == wanted


@pytest.mark.parametrize(
    ("devices", "listed", "expected"),
    [
        (("GPU-a", "GPU-b"), None, "GPU-b"),
        (("GPU-a", "GPU-b"), "GPU-a,GPU-b,GPU-c", "GPU-b"),
        ((), None, ""),
        ((), "", ""),
        ((), "3", "3"),
    ],
)
def test_a_rank_sees_its_own_device_only(
    tmp_path: Path, devices: tuple[str, ...], listed: str | None, expected: str
) -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if listed is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = listed
    assert environment(tmp_path, devices=devices)["CUDA_VISIBLE_DEVICES"] == expected


@pytest.mark.parametrize(
    ("replicas", "visible", "device_ids"),
    [
        ((), "GPU-a,GPU-b,GPU-c", "0,1,2"),
        ((0, 0), "GPU-a", "0,0"),
        ((2, 1), "GPU-c,GPU-b", "0,1"),
        ((2, 0, 2), "GPU-c,GPU-a", "0,1,0"),
    ],
)
def test_data_parallel_sees_the_devices_of_its_replicas_and_the_first_of_them_first(
    tmp_path: Path, replicas: tuple[int, ...], visible: str, device_ids: str
) -> None:
    task = task_in(tmp_path, devices=("GPU-a", "GPU-b", "GPU-c"))
    num_devices = len(set(replicas)) or 3
    mode = replace(
        task.mode, world_size=1, distributed=False, num_devices=num_devices, replicas=replicas, batch_rule="global"
    )
    found = processes._environment(replace(task, mode=mode), 0)
    assert found["CUDA_VISIBLE_DEVICES"] == visible
    assert found[DEVICE_IDS_VARIABLE] == device_ids


def test_other_modes_are_told_of_no_device_ids(tmp_path: Path) -> None:
    os.environ.pop(DEVICE_IDS_VARIABLE, None)
    assert DEVICE_IDS_VARIABLE not in environment(tmp_path, devices=("GPU-a", "GPU-b"))
    task = task_in(tmp_path, devices=("GPU-a", "GPU-b"))
    single = replace(task.mode, name="single", world_size=1, distributed=False, num_devices=1)
    found = processes._environment(replace(task, mode=single), 0)
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert DEVICE_IDS_VARIABLE not in found


def test_ranks_do_not_meet_where_a_launcher_around_dpdoctor_has_its_own_meet(tmp_path: Path) -> None:
    os.environ.update(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="none", MASTER_CONFIG="mine")
    found = {name for name in environment(tmp_path) if name.startswith(("MASTER_", "TORCHELASTIC_"))}
    assert found == {"MASTER_CONFIG"}


def test_sets_have_one_order_on_all_ranks_unless_the_person_chose_otherwise(tmp_path: Path) -> None:
    os.environ.pop("PYTHONHASHSEED", None)
    assert {environment(tmp_path, rank=rank)["PYTHONHASHSEED"] for rank in (0, 1)} == {"0"}
    os.environ["PYTHONHASHSEED"] = "random"
    assert environment(tmp_path)["PYTHONHASHSEED"] == "random"


def test_what_the_person_chose_for_gloo_is_kept(tmp_path: Path) -> None:
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    assert environment(tmp_path)["GLOO_SOCKET_IFNAME"] == "lo"
    os.environ["GLOO_SOCKET_IFNAME"] = "eth7"
    assert environment(tmp_path)["GLOO_SOCKET_IFNAME"] == "eth7"


def test_the_end_of_one_rank_ends_the_wait_for_all(start: Start) -> None:
    lasting, ending = start("import time; time.sleep(3600)"), start("import time; time.sleep(0.2)")
    processes.wait_for_one([lasting, ending], 30)  # all of it where that one ends before it is waited for
    assert (lasting.exit_code(), ending.exit_code()) == (None, 0)
    processes.wait_for_one([lasting, ending], 0.01)
    processes.kill([lasting, ending])
