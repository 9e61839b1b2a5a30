"""What each mode makes of the work: DDP's gradient buckets, FSDP's wrap units, nn.DataParallel's devices."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.blocks import Block, View
from dpdoctor.report.traces import data_parallel, gradient_buckets, shard_units
from dpdoctor.report.traces.traced import TracedMode, by_mode, has_traces
from dpdoctor.report.words import standing

ONE_DEVICE = "one device alone has neither buckets nor shards nor replicas"
NOTHING_FOUND = "the traces hold no gradient bucket of DDP, no wrap unit of FSDP and no nn.DataParallel"


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode charts and tables of what ran: buckets, units or devices."""
    return by_mode(analysis, "Buckets, units and replicas", _mode)


def _mode(mode: TracedMode) -> Sequence[Block] | str:
    found = [*gradient_buckets.blocks(mode), *shard_units.blocks(mode), *data_parallel.blocks(mode)]
    if found:
        return found
    unknown = mode.traces.why_unknown
    return unknown or (ONE_DEVICE if standing.is_baseline(mode.mode) else NOTHING_FOUND)


VIEW: View[Diagnosis] = View(
    name="parallel", title="Buckets, units, replicas", build=build, applies=has_traces, is_half=True
)
