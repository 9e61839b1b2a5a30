"""What machine this is, without torch: cores, GPUs, versions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpdoctor import cgroup, redact
from dpdoctor.spec import Fingerprint, Gpu

_PACKAGES = ("torch", "torchvision", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CPUINFO = Path("/proc/cpuinfo")
_GENERATION = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}


def command(name: str) -> str | None:
    """Return where a command is: on PATH or, as in an environment that is not activated, beside this Python."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """Return all GPUs in NVML's order and the driver's version; no GPUs where there is no driver."""
    if not _has_driver():
        return (), None
    import pynvml  # here: most machines that traces are read on have no GPU, and it takes its time

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        found = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(filter(None, found)), _told(pynvml.nvmlSystemGetDriverVersion)
    except pynvml.NVMLError:
        return (), None
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu | None:
    """Return one GPU; None: it is lost, and cannot be used.

    Its memory is not told where it shares the host's, or is the parent of MIG instances.
    """
    import pynvml

    handle = _told(pynvml.nvmlDeviceGetHandleByIndex, index)
    uuid = _told(pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
    if uuid is None:
        return None
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, handle)
    name = _told(pynvml.nvmlDeviceGetName, handle) or "GPU without a name"
    return Gpu(name=name, uuid=uuid, memory_bytes=int(memory.total) if memory is not None else None)


def _told(query: Callable[..., Any], *of: Any) -> Any:
    """Return what NVML answers; None: it does not."""
    import pynvml

    try:
        return query(*of)
    except pynvml.NVMLError:
        return None


def _has_driver() -> bool:
    """Return whether the driver's library is there, which pynvml loads by this name."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def num_cuda_devices() -> int:
    """Return how many GPUs CUDA itself finds, whatever NVML says; 0 also where CUDA_VISIBLE_DEVICES hides them."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    number = ctypes.c_int()
    failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number))
    return 0 if failed else number.value


def visible_devices(all_gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Return one CUDA_VISIBLE_DEVICES entry per usable GPU: the user's own list, else UUIDs in NVML's order."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not all_gpus:
        return ()
    if listed is None:
        return tuple(gpu.uuid for gpu in all_gpus)
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    # CUDA ignores everything from the first invalid entry on; -1 is the customary one.
    return tuple(entries[: entries.index("-1")] if "-1" in entries else entries)


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages on which figures depend."""
    import importlib.metadata  # here: traces were not made by what is installed, and it takes its time

    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            # None: of one whose installation broke off.
            if (version := importlib.metadata.version(name)) is not None:
                found[name] = version
    return found


def fingerprint(script: Path | None, packages: dict[str, str]) -> Fingerprint:
    """Return what must be alike before two runs may be compared; `script` None: a module, or traces."""
    all_gpus, driver = gpus()
    if script:
        import hashlib  # here: traces have no script

    return Fingerprint(
        host=redact.text(socket.gethostname()),
        cpu=_cpu_name(),
        cores=cgroup.cores(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        gpus=all_gpus,
        driver=driver,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages=packages,
        script_sha256=hashlib.sha256(script.read_bytes()).hexdigest() if script else None,
        governor=_governor(),
    )


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text().strip()
    except OSError:  # a virtual machine or a container is not told
        return None


def _cpu_name() -> str | None:
    """Return what the kernel calls the first core: its name, and the numbers that tell generations of it apart.

    In a virtual machine the name may be that of all of them, such as "AMD EPYC"; on Arm there are numbers only.
    """
    try:
        first, _, _ = _CPUINFO.read_text().partition("\n\n")
    except OSError:
        return None
    pairs = (line.partition(":") for line in first.splitlines())
    told = {name.strip(): value.strip() for name, _, value in pairs}
    parts = (told.get("model name"), *(f"{word} {told[name]}" for name, word in _GENERATION.items() if name in told))
    return ", ".join(filter(None, parts)) or None
