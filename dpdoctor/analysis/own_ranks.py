"""Ranks that dpdoctor did not start: how many, whose samples they train on, how they compare with one alone."""

from __future__ import annotations

import dataclasses
import math

import msgspec

from dpdoctor import units
from dpdoctor.analysis.summary import ModeSummary
from dpdoctor.records import POINT_TO_POINT, LaunchRecord, RankRecord
from dpdoctor.spec import BASELINE, ModeSpec

IN_STAGES = (
    "ranks send each other tensors, as stages of a pipeline do, and which of them train on the same samples is not "
    "known: give --samples-per-step"
)
UNLIKE_GROUPS = "some ranks train on the same samples and others on their own: give --samples-per-step"
# Mean batches differ by this much where an epoch's last one is short.
SAME_BATCH = 0.02


def found(spec: ModeSpec, launch: LaunchRecord) -> ModeSpec:
    """Return a mode with the ranks that there were, where somebody else than dpdoctor started them."""
    size = launch.world_size
    return dataclasses.replace(spec, world_size=size, num_devices=size) if size else spec


def why_uncounted(first: RankRecord | None, alike: int) -> str | None:
    """Return why the samples of ranks cannot be added up, of which so many train on the same; None: they can."""
    if first is not None and any(way.name == POINT_TO_POINT for way in first.conversion.strategies):
        return IN_STAGES
    return None if alike else UNLIKE_GROUPS


def with_batch_rule(mode: ModeSummary, baseline: ModeSummary | None) -> ModeSummary:
    """Return a mode whose script shares out its batches with the rule by which it does, seen beside one rank's."""
    if mode.native is None or mode is baseline:
        return mode
    alone = baseline.batch.per_device if baseline is not None and baseline.native is not None else None
    rule = "own"
    if alone and mode.batch.per_device:
        part = mode.batch.per_device / alone
        if math.isclose(part, 1, rel_tol=SAME_BATCH):
            rule = "per-device"
        elif math.isclose(part, 1 / mode.num_devices, rel_tol=SAME_BATCH):
            rule = "global"
    return dataclasses.replace(mode, batch=msgspec.structs.replace(mode.batch, rule=rule))


def why_unlike(mode: ModeSummary, baseline: ModeSummary) -> str | None:
    """Return why the ranks of a mode are not to be held against a rank alone; None: they may be."""
    if mode.native is None or baseline.native is None:
        return None
    if mode.world_size == 1:
        return f"`{' '.join(mode.native.launcher)}` made the script one rank"
    if baseline.world_size > 1:
        return f"`{BASELINE}` was to be one rank, but the script started {units.count(baseline.world_size, 'rank')}"
    ours, alone = ({rank.device for rank in one.ranks[:1]} for one in (mode, baseline))
    if ours != alone:
        return f"one of several ranks computed on {_names(ours)}, one alone on {_names(alone)}; set OMP_NUM_THREADS"
    return None


def _names(devices: set[str]) -> str:
    return ", ".join(sorted(devices)) or "nothing known"
