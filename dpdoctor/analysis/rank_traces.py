"""What each rank's trace says of each of its devices, as run.json has it."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor.analysis.summary import DeviceTime, RankTrace
from dpdoctor.digest import HOST, DeviceDigest, Digest

NS_PER_S = 1_000_000_000


def rank_traces(digests: Sequence[Digest]) -> tuple[RankTrace, ...]:
    """Return the traces in the order given, each with its devices."""
    return tuple(
        RankTrace(
            rank=digest.rank,
            source=digest.source,
            damage=digest.damage,
            notes=digest.notes,
            unknown_communication=digest.unknown_communication,
            devices=tuple(map(_device_time, digest.devices)),
        )
        for digest in digests
    )


def _device_time(device: DeviceDigest) -> DeviceTime:
    whole = device.whole
    return DeviceTime(
        device=None if device.index == HOST else device.index,
        compute_s=whole.compute_ns / NS_PER_S,
        exposed_comm_s=_seconds(whole.exposed_comm_ns),
        h2d_s=whole.h2d_ns / NS_PER_S,
        copy_s=whole.copy_ns / NS_PER_S,
        idle_s=whole.idle_ns / NS_PER_S,
        total_s=whole.total_ns / NS_PER_S,
        comm_s=_seconds(whole.comm_ns),
    )


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_S
