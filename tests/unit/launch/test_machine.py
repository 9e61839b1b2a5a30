from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import pytest

from dpdoctor.launch import machine
from dpdoctor.spec import Gpu

ALLOWED = len(os.sched_getaffinity(0))
GPUS = tuple(Gpu(name="Example", uuid=f"GPU-{i}", memory_bytes=1) for i in range(4))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, ALLOWED),
        ("max 100000", ALLOWED),
        ("", ALLOWED),
        ("nonsense", ALLOWED),
        ("100000 100000", 1),
        ("20000 100000", 1),
        ("150000 100000", min(ALLOWED, 2)),
        ("100000000 100000", ALLOWED),
    ],
)
def test_cores_are_what_the_affinity_and_the_cgroup_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, expected: int
) -> None:
    path = tmp_path / "cpu.max"
    if quota is not None:
        path.write_text(quota)
    monkeypatch.setattr(machine, "_CPU_QUOTAS", ((path,),))
    assert machine.cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("250000", 3)])
def test_a_quota_of_the_first_version_of_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    files = (tmp_path / "quota", tmp_path / "period")
    for file, text in zip(files, (quota, "100000"), strict=True):
        file.write_text(text)
    monkeypatch.setattr(machine, "_CPU_QUOTAS", ((tmp_path / "cpu.max",), files))
    assert machine.cores() == expected


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
    found = machine.fingerprint(script)
    assert found.script_sha256 == hashlib.sha256(b"print()").hexdigest()
    assert found.cores == machine.cores() >= 1
    assert found.memory_bytes > 0
    assert found.python == platform.python_version()
    assert {"torch", "numpy"} <= set(found.packages)
    assert (found.driver is None) == (found.gpus == ())
    assert machine.fingerprint(None).script_sha256 is None


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
    assert machine.fingerprint(None).cpu == expected
