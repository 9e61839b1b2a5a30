"""Before the script: threads, random numbers, the process group, and what the device is called."""

from __future__ import annotations

import os
import platform
from datetime import timedelta

import torch
import torch.distributed as dist

from dpdoctor import rundir, units
from dpdoctor.records import Device
from dpdoctor.spec import WorkerTask
from dpdoctor.worker import seeding
from dpdoctor.worker.launched import Place


def set_up(task: WorkerTask, where: Place) -> str | None:
    """Prepare this process for its mode; return the backend of its process group, None where it has none."""
    torch.set_num_threads(task.spec.threads_per_device)
    seeding.seed_all(task.spec.seed)
    if not task.mode.distributed:
        return None
    backend = "gloo"
    if torch.cuda.is_available():
        # A script on a machine with GPUs may still train on the CPU.
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(0)
    # torchrun announces a store; dpdoctor's own ranks meet over a file: no port that another process could take.
    announced = "MASTER_ADDR" in os.environ
    dist.init_process_group(
        backend,
        init_method="env://" if announced else f"file://{task.directory}/{rundir.RENDEZVOUS}",
        rank=where.rank,
        world_size=where.world_size,
        timeout=timedelta(seconds=task.spec.collective_timeout_s),
    )
    return backend


def device_type() -> str:
    """Return torch's name for the kind of device that this rank computes on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(num_threads: int) -> str:
    """Return what this rank computes on, in words."""
    if device_type() == "cuda":
        return torch.cuda.get_device_name(0)
    return f"CPU ({platform.machine()}), {units.count(num_threads, 'thread')}"


def devices() -> tuple[Device, ...]:
    """Return the GPUs that this process sees, in torch's order; none on the CPU."""
    return tuple(_device(index) for index in range(torch.cuda.device_count()))


def _device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(properties.uuid)
    # NVML's names begin like this; torch tells the number alone.
    return Device(
        name=properties.name,
        uuid=uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        memory_bytes=properties.total_memory,
    )
