"""How a script that distributes itself does it, named from what it built and from what one of its steps exchanged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from dpdoctor import units
from dpdoctor.records import HAND_WRITTEN, NOTHING, NOW_AND_THEN, POINT_TO_POINT, TENSOR_PARALLEL, Strategy
from dpdoctor.worker.base.structure import own_parameters
from dpdoctor.worker.timing.exchanges import Call, Exchanges

# From this part of what is trained on, counted in bytes, an exchange of the script's own is one of gradients or
# parameters; less is a flag, a loss that is logged, a metric.
LEAST_SHARE = 0.01
NO_RHYTHM = (
    "ranks exchange something in few steps, in no rhythm that warm-up showed: windows may hold more or less of it than "
    "the rest of the job, and so may the time of a step. Give --warmup and --steps that hold several rounds"
)


def found(
    modules: Sequence[nn.Module], optimizers: Iterable[Optimizer], exchanges: Exchanges, trained_bytes: int
) -> tuple[Strategy, ...]:
    """Return the strategies of a script, several where it combines them."""
    parts = [part for module in modules for part in module.modules()]
    return (
        *(_ddp(part) for part in parts if isinstance(part, DistributedDataParallel)),
        *_fsdp1([part for part in parts if isinstance(part, FullyShardedDataParallel)]),
        *_fsdp2([part for part in parts if isinstance(part, FSDPModule)]),
        *_tensor_parallel(parts),
        *(_dp(part) for part in parts if isinstance(part, DataParallel)),
        *(Strategy(name="zero") for o in optimizers if type(o).__name__ == "ZeroRedundancyOptimizer"),
        *_own(exchanges.calls, trained_bytes),
        *_point_to_point(exchanges, trained_bytes),
    )


def _ddp(wrapper: DistributedDataParallel) -> Strategy:
    told: dict[str, Any] = dict(wrapper._get_ddp_logging_data())
    sizes = [
        int(size)
        for size in str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "").split(",")
        if size.strip()
    ]
    facts = [
        f"{units.count(len(sizes), 'bucket')} of {units.size(max(sizes))} at most" if sizes else "",
        f"communication hook {told['comm_hook']}" if told.get("comm_hook") else "",
        "find_unused_parameters" if wrapper.find_unused_parameters else "",
        "static_graph" if wrapper.static_graph else "",
        "gradient_as_bucket_view" if wrapper.gradient_as_bucket_view else "",
    ]
    option = "forward_sync_buffers" if hasattr(wrapper, "forward_sync_buffers") else "broadcast_buffers"
    buffers = len(wrapper.modules_buffers) if getattr(wrapper, option) else 0
    hook = str(told.get("comm_hook") or "")
    trained = {
        id(parameter): parameter.numel() * parameter.element_size()
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and name not in wrapper.parameters_to_ignore
    }
    return Strategy(
        name="ddp",
        facts=", ".join(filter(None, facts)),
        hook=hook,
        buffers=buffers,
        trainable_bytes=sum(trained.values()),
    )


def _fsdp1(shards: Sequence[FullyShardedDataParallel]) -> list[Strategy]:
    if not shards:
        return []
    kinds = sorted({shard.sharding_strategy.name for shard in shards})
    return [Strategy(name="fsdp1", facts=f"{', '.join(kinds)}, {units.count(len(shards), 'unit')}")]


def _fsdp2(shards: Sequence[FSDPModule]) -> list[Strategy]:
    if not shards:
        return []
    meshes = {shape for shard in shards if (shape := _mesh(shard))}
    facts = [units.count(len(shards), "unit"), *(f"mesh {shape}" for shape in sorted(meshes))]
    return [Strategy(name="fsdp2", facts=", ".join(facts))]


def _mesh(shard: FSDPModule) -> str:
    """Return the shape of the mesh over which a unit is sharded, as in `2 x 4`; empty: it has no parameters."""
    group = shard._get_fsdp_state()._fsdp_param_group
    return " x ".join(map(str, group.mesh_info.mesh.shape)) if group is not None else ""


def _tensor_parallel(parts: Sequence[nn.Module]) -> list[Strategy]:
    """Return that parameters are sharded along a dimension of a mesh that is not fully_shard's, which has one."""
    of_fsdp = any(isinstance(part, FSDPModule) for part in parts)
    sharded = {
        id(parameter)
        for part in parts
        for parameter in own_parameters(part)
        if isinstance(parameter, DTensor)
        and sum(not placement.is_replicate() for placement in parameter.placements) > of_fsdp
    }
    return [Strategy(name=TENSOR_PARALLEL, facts=f"{len(sharded)} sharded parameters")] if sharded else []


def _dp(wrapper: DataParallel[nn.Module]) -> Strategy:
    devices = len(getattr(wrapper, "device_ids", ()))
    return Strategy(name="dp", facts=units.count(devices, "device"))


def _own(calls: Sequence[Call], trained_bytes: int) -> list[Strategy]:
    """Return one strategy for each line at which the script itself exchanges what it trains."""
    by_line: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        by_line[call.line, call.operation].append(call)
    return [
        Strategy(
            name=HAND_WRITTEN,
            facts=_words(operation, of_line),
            line=line,
            calls=len(of_line),
            in_backward=_is_in_backward(of_line),
            of_gradients=all(call.before_update for call in of_line),
        )
        for (line, operation), of_line in by_line.items()
        if sum(call.num_bytes for call in of_line) >= max(1, LEAST_SHARE * trained_bytes)
    ]


def _point_to_point(exchanges: Exchanges, trained_bytes: int) -> list[Strategy]:
    """Return that ranks send to single others what is not all that they train, once or more often.

    That would be a ring of the script's own, or gossip: each of its ranks trains a whole model.
    """
    sends = [call.num_bytes for call in exchanges.calls if call.operation == "send"]
    sent, are_all_known = sum(sends), len(sends) == exchanges.kinds["send"]
    if sent and are_all_known and trained_bytes and sent % trained_bytes == 0:
        return []
    number = exchanges.kinds["send"] + exchanges.kinds["recv"]
    facts = f"{number} sends and receives in a step, as of pipeline parallel stages"
    return [Strategy(name=POINT_TO_POINT, facts=facts)] if number else []


def _words(operation: str, calls: Sequence[Call]) -> str:
    num_bytes = sum(call.num_bytes for call in calls)
    when = "while the backward pass goes on" if _is_in_backward(calls) else "outside of the backward pass"
    return f"{units.count(len(calls), 'call')} of {operation} in a step, {units.size(num_bytes)}, {when}"


def _is_in_backward(calls: Sequence[Call]) -> bool:
    return 2 * sum(call.in_backward for call in calls) > len(calls)


def of_run(at_proof: tuple[Strategy, ...], exchanges: Exchanges) -> tuple[Strategy, ...]:
    """Return the strategies of a whole run, given those of one step: what ranks exchange in no step they never do."""
    if not exchanges.is_known or not exchanges.num_steps:
        return at_proof
    steps = units.count(exchanges.num_steps, "step")
    if not exchanges.num_exchanging:
        return (*at_proof, Strategy(name=NOTHING, facts=f"no collective was issued in {steps}"))
    if 2 * exchanges.num_exchanging < exchanges.num_steps:
        told = f"something is exchanged in {exchanges.num_exchanging} of {steps}"
        of_which = "calls are those of a step in which it is" if exchanges.kinds else "which calls do it was not seen"
        return (*at_proof, Strategy(name=NOW_AND_THEN, facts=f"{told}; {of_which}"))
    return at_proof


def doubt(ways: Sequence[Strategy], period: int) -> str | None:
    """Return why windows need not hold what is exchanged now and then, given the steps of its rhythm; None: they do."""
    return NO_RHYTHM if period == 1 and any(way.name == NOW_AND_THEN for way in ways) else None
