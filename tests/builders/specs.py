"""A run directory in memory: the surroundings that every test of a run shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpdoctor.records import Launch, Run
from dpdoctor.spec import Fingerprint, Gpu, ModeSpec, RunHeader, RunSpec

MS = 1_000_000


def mode_spec(name: str, world_size: int = 1, batch_rule: str = "per-device") -> ModeSpec:
    """Return a mode as it would be launched."""
    parallel = world_size > 1
    return ModeSpec(
        name=name, world_size=world_size, num_devices=world_size, distributed=parallel, batch_rule=batch_rule
    )


def run(
    modes: Mapping[ModeSpec, Sequence[Launch]],
    *,
    script: str = "/home/me/train.py",
    args: Sequence[str] = ("--epochs", "2"),
    devices: Sequence[str] = (),
    gpus: Sequence[Gpu] = (),
) -> Run:
    """Return a run with these modes, in this order, repeated as often as the mode with most launches."""
    spec = RunSpec(
        target=script,
        args=tuple(args),
        cwd="/home/me",
        modes=tuple(modes),
        requested_modes=tuple(mode.name for mode in modes),
        devices=tuple(devices),
        threads_per_device=1,
        repeat=max((1, *map(len, modes.values()))),
    )
    fingerprint = Fingerprint(
        host="node",
        cpu="Example CPU @ 2.00GHz",
        cores=2,
        memory_bytes=16_000_000_000,
        gpus=tuple(gpus),
        driver="580.65" if gpus else None,
        system="Linux 6.1",
        python="3.11.7",
        packages={"torch": "2.15.0", "torchvision": "0.29.2"},
        script_sha256="ab" * 32,
    )
    header = RunHeader(
        dpdoctor="0.1.0",
        created="2026-01-02T03:04:05Z",
        command=("dpdoctor", "profile", script, *args),
        spec=spec,
        fingerprint=fingerprint,
    )
    return Run(path=Path("run"), header=header, modes={mode.name: tuple(found) for mode, found in modes.items()})
