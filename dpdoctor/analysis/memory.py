"""How full the memory of each GPU became."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdoctor.records import Launch
from dpdoctor.spec import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that torch's allocator held on one GPU; `total_bytes` is None where the GPU's size is not known."""

    name: str
    rank: int
    num_bytes: int
    total_bytes: int | None


def peaks(launch: Launch, gpus: Sequence[Gpu]) -> list[Peak]:
    """Return every GPU's peak, of all ranks, where it was recorded; empty on the CPU."""
    sizes = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    return [
        Peak(
            name=f"GPU {index}" if len(rank.record.devices) > 1 else f"rank {rank.index}'s GPU",
            rank=rank.index,
            num_bytes=device.peak_memory_bytes,
            total_bytes=sizes.get(device.uuid),
        )
        for rank in launch.ranks
        if rank.record is not None
        for index, device in enumerate(rank.record.devices)
        if device.peak_memory_bytes is not None
    ]
