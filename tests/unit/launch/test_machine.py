from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from dpdoctor import cgroup
from dpdoctor.launch import machine
from dpdoctor.spec import Gpu

GPUS = tuple(Gpu(name="Example", uuid=f"GPU-{i}", memory_bytes=1) for i in range(4))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ("GPU-0", "GPU-1", "GPU-2", "GPU-3")),
        ("", ()),
        ("2,0", ("2", "0")),
        (" GPU-3 , GPU-1,", ("GPU-3", "GPU-1")),
        ("MIG-abc", ("MIG-abc",)),
        ("-1", ()),
        ("1,-1,0", ("1",)),
    ],
)
def test_visible_devices_are_the_users_own_list_else_all(listed: str | None, expected: tuple[str, ...]) -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if listed is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = listed
    assert machine.visible_devices(GPUS) == expected
    assert machine.visible_devices(()) == ()


def test_the_fingerprint_tells_what_must_be_alike(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    found = machine.fingerprint(script, machine.package_versions())
    assert found.script_sha256 == hashlib.sha256(b"print()").hexdigest()
    assert found.cores == cgroup.cores() >= 1
    assert found.memory_bytes > 0
    assert found.python == platform.python_version()
    assert {"torch", "numpy"} <= set(found.packages)
    assert (found.driver is None) == (found.gpus == ())
    assert machine.fingerprint(None, {}).script_sha256 is None


def test_a_package_whose_installation_broke_off_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert "numpy" not in machine.package_versions()
    assert "torch" in machine.package_versions()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nmodel name\t: Example 7\n\nprocessor\t: 1\nmodel name\t: Other\n", "Example 7"),
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n", "AMD EPYC, family 26, model 2"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "implementer 0x41, part 0xd40"),
        ("processor\t: 0\n", None),
        (None, None),
    ],
)
def test_generations_of_a_cpu_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, expected: str | None
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", path)
    assert machine.fingerprint(None, {}).cpu == expected


class Driver:
    """Stands in for NVML on a machine of GPUs that refuse some queries: `refused` names them, each with its GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *uuids: str, **refused: tuple[int, ...]) -> None:
        self._refused = refused
        monkeypatch.setattr(machine, "_has_driver", lambda: True)
        memory = SimpleNamespace(total=80_000)
        answers = {
            "DeviceGetHandleByIndex": lambda index: index,
            "DeviceGetUUID": lambda handle: uuids[handle],
            "DeviceGetName": lambda handle: f"Example {handle}",
            "DeviceGetMemoryInfo": lambda _: memory,
            "SystemGetDriverVersion": lambda: "580.65",
            "DeviceGetCount": lambda: len(uuids),
            "Init": lambda: None,
            "Shutdown": lambda: None,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, f"nvml{name}", functools.partial(self._ask, name, answer))

    def _ask(self, name: str, answer: Callable[..., object], *of: int) -> object:
        if name in self._refused and (not of or of[0] in self._refused[name]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answer(*of)


def test_a_gpu_that_does_not_tell_its_memory_is_there_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, "GPU-a", "GPU-b", DeviceGetMemoryInfo=(0,), DeviceGetName=(1,))
    found, driver = machine.gpus()
    assert [(gpu.name, gpu.uuid, gpu.memory_bytes) for gpu in found] == [
        ("Example 0", "GPU-a", None),
        ("GPU without a name", "GPU-b", 80_000),
    ]
    assert driver == "580.65"
    assert machine.fingerprint(None, {}).gpus == found


def test_a_gpu_that_is_lost_takes_none_of_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, "GPU-a", "GPU-b", "GPU-c", DeviceGetHandleByIndex=(1,), SystemGetDriverVersion=())
    found, driver = machine.gpus()
    assert ([gpu.uuid for gpu in found], driver) == (["GPU-a", "GPU-c"], None)


@pytest.mark.parametrize("refused", ["Init", "DeviceGetCount"])
def test_a_driver_that_tells_of_no_gpu_ends_nothing(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    Driver(monkeypatch, "GPU-a", **{refused: ()})
    assert machine.gpus() == ((), None)


@pytest.mark.parametrize(("failed", "found"), [((0, 0), 3), ((100, 0), 0), ((0, 3), 0)])
def test_gpus_that_cuda_finds(monkeypatch: pytest.MonkeyPatch, failed: tuple[int, int], found: int) -> None:
    def count(number: ctypes.c_int) -> int:
        number.value = 3
        return failed[1]

    library = SimpleNamespace(cuInit=lambda _: failed[0], cuDeviceGetCount=count)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(ctypes, "byref", lambda number: number)
    assert machine.num_cuda_devices() == found


def test_without_a_library_cuda_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert machine.num_cuda_devices() == 0
