"""fsdp: torch's fully_shard (FSDP2), one process per device."""

from __future__ import annotations

import functools
import linecache
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.records import Check
from dpdoctor.worker.base.mode import MADE_LATE, ConversionError, Evidence, Mode, WrapOptions

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from dpdoctor.worker.base.patches import Patches
    from dpdoctor.worker.modes._shards import Shards

# Small collectives of the script's own stay below this.
BYTES_WITHIN = 0.02
# Where torch raises, and what it says, when plain and sharded tensors meet.
_TORCH, _SHARDING = "/torch/", "/torch/distributed/"
_SHARDED = re.compile(r"DTensor|FSDP|sharded|redistribute|device mesh|tensor subclasses|invalid python storage")
# Of what the script's own class has not either.
_MISSING = re.compile(r"^'FSDP\w+' object has no attribute ")
# What autograd says where it meets parameters that were gathered and let go of again; with a graph of gradients it may
# also find that they are not in it.
_LET_GO = re.compile(r"setStorage: .* storage of size 0|data is not allocated yet")
_NOT_IN_GRAPH = "does not require grad"
# What fully_shard says, at the first forward, of a unit whose trained parameters are not of one type.
_MIXED = "FSDP expects uniform"
# What to do instead of registering a hook on a parameter: torch runs none but the latter, and only those of shards.
_BY_HAND = "Change .grad after backward() instead, as torch.nn.utils.clip_grad_value_ does"
_INSTEAD = {
    "register_post_accumulate_grad_hook": (
        "If it steps an optimizer, step after backward(); in a script of your own, register it after fully_shard"
    ),
}
_NO_GRADIENT = "FSDP itself gives a sharded parameter its gradient"
_PAST_OUTPUTS = (
    ": FSDP reduces gradients where a backward pass comes to a tensor that a module returns, by itself or in tuples, "
    "lists and dicts, and among what {} returns is none to which it comes. Return the loss, or the tensors of which it "
    "is made"
)
UNLOGGED = (
    f"what wandb.watch logs of gradients is missing: {_NO_GRADIENT}, and wandb's hooks on parameters do not run. "
    "Training is the same without them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is gathered at once.

    Attributes:
        parameters: by id; for what lies in the root all of its module's, with any of which the root runs as well.
        num_bytes: what one forward and its backward gather.
    """

    parameters: frozenset[int]
    num_bytes: int

    def backwards(self, evidence: Evidence) -> int:
        """Return how many backward passes gave it gradients: without one it stays gathered, or is gathered once.

        It may be frozen for a while, its output be detached, and a block not run in each step.
        """
        return max((evidence.accumulated.get(parameter, 0) for parameter in self.parameters), default=0)


class FSDP(Mode):
    """fully_shard on the wrap units and on the module itself, with its defaults."""

    distributed = communicates = True
    routes_methods = True

    def __init__(self) -> None:
        self._units: dict[int, tuple[Unit, ...]] = {}
        self._padding: dict[int, int] = {}
        self._shards: dict[int, Shards] = {}

    def prepare(self, patches: Patches) -> None:
        """Have clip_grad_norm_ return a plain tensor, which scripts print and compare, and any library save a shard.

        A hook that torch would take, and never run, is refused, or told where it only logs.
        """
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.tensor import DTensor
        from torch.nn import utils
        from torch.nn.utils import clip_grad

        from dpdoctor.worker.modes._shards import save_parts

        save_parts(patches)
        clip = utils.clip_grad_norm_

        @functools.wraps(clip)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> torch.Tensor:
            norm = clip(*args, **kwargs)
            return norm.full_tensor() if isinstance(norm, DTensor) else norm

        self._patches = patches
        patches.replace(DTensor, "register_hook", self._refusing(DTensor.register_hook))
        patches.replace(utils, "clip_grad_norm_", clip_grad_norm_)
        patches.replace(clip_grad, "clip_grad_norm_", clip_grad_norm_)
        patches.replace(FSDPModule, "_apply", _where_it_changes(FSDPModule._apply))

    def _refusing(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `register_hook` that takes none on a shard but those that only log.

        Another sharded parameter of the script's own gets its gradient from autograd, which runs them.
        """

        @functools.wraps(register)
        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            from dpdoctor.worker.base import lines
            from dpdoctor.worker.modes import _hooks

            is_shard = any(id(tensor) in shards.parameters for shards in self._shards.values())
            if is_shard and tensor.requires_grad:
                given = _hooks.of("", _hooks.ON_TENSOR, hook)
                if not given.only_logs:
                    raise ConversionError(
                        f"{_NO_GRADIENT}, and {_hooks.named(given.function)}, registered on one at {lines.caller()} "
                        f"({given.by}), would not run. {_BY_HAND}"
                    )
                self._warn(UNLOGGED)
            return register(tensor, hook)

        return register_hook

    def explain(self, error: BaseException, line: str) -> str | None:
        """Return the reason when the script met a sharded parameter where it expected a whole one."""
        from dpdoctor.worker.base import lines

        what = lines.raised(error)
        is_let_go = _LET_GO.search(str(error)) is not None
        if self.passes.with_graph and (is_let_go or _NOT_IN_GRAPH in str(error)):
            return (
                f"FSDP lets go of whole parameters in the first backward pass through them; {self.passes.with_graph} "
                f"asks for gradients of gradients (create_graph=True), for which {line} needs them again"
            )
        if is_let_go and not self.passes.repeated:
            return (
                "FSDP lets go of a unit's whole parameters after its forward and gathers them again when the backward "
                f"pass comes to what the unit returned; that at {line} needs them and does not come there, as where a "
                "hook takes what is trained on out of the unit. Name smaller units with --fsdp-wrap, or train in ddp"
            )
        if self.passes.by_grad:
            return f"FSDP shards parameters{self.passes.past_hooks()}. It raised {what} at {line}"
        if _MIXED in str(error):
            return (
                f"FSDP gathers parameters of one type in a unit, and {line} calls a model that mixes them ({what}). "
                "Train them in one type, or name with --fsdp-wrap units of one type each; in ddp they may differ"
            )
        frames = traceback.extract_tb(error.__traceback__)
        if _SHARDING not in frames[-1].filename and not _SHARDED.search(_MISSING.sub("", str(error))):
            return None
        path, _, number = line.rpartition(":")
        source = linecache.getline(path, int(number)).strip() if number.isdigit() else ""
        theirs = (of for of in reversed(frames) if _TORCH not in of.filename and not lines.is_ours(of.filename))
        inner = next((f"{of.filename}:{of.lineno}" for of in theirs), line)
        inside = "" if inner == line else f" at {inner}"
        found = self._made_late(f"{what} at {line}") or self._called_alone(error)
        found = found or f"{line} does `{source}`, which needs them whole{inside} ({what})"
        return f"FSDP shards parameters; {found}"

    def _made_late(self, what: str) -> str:
        """Return that a parameter was made too late to be sharded, where one was, and what was raised; or nothing."""
        late = next(filter(None, (shards.made_late() for shards in self._shards.values())), "")
        return f"one was {MADE_LATE.format(late)} ({what})" if late else ""

    def _called_alone(self, error: BaseException) -> str:
        """Return that an error came out of a part of a sharded model, past any call of the whole; or nothing."""
        from dpdoctor.worker.base import lines

        called = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
        for root in (shards.root for shards in self._shards.values()):
            parts = {id(part) for part in root.modules()}
            part = next((each for each in called if id(each) in parts), root)
            if part is not root:
                names = (type(each).__name__.removeprefix("FSDP") for each in (root, part))
                at = f"{lines.raised(error)} at {lines.raised_at(error.__traceback__)}"
                return "a call of {} gathers them, and {}, a part of it, is called alone ({})".format(*names, at)
        return ""

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
        """Return the module's own call, which gathers its shards; all ranks begin with rank 0's values."""
        from torch.distributed.device_mesh import init_device_mesh

        from dpdoctor.worker.base import structure
        from dpdoctor.worker.modes._shards import Shards, share_attributes
        from dpdoctor.worker.wrap.sharding import named_blocks, repeated_blocks, replacements, repoint

        _refuse_sharded(module, self._shards.values())
        _refuse_scalars(module)
        _refuse_sparse(module)
        _refuse_hooks(module, how.warn)
        self._warn = how.warn
        name = type(module).__name__
        blocks = repeated_blocks(module) if how.fsdp_wrap is None else named_blocks(module, how.fsdp_wrap)
        _lay_out(module, how.warn)
        before = dict(structure.by_names(module))
        _broadcast(module)
        self._padding[id(module)] = sum(_padded_bytes(p) - p.numel() * p.element_size() for p in module.parameters())
        device = next(iter(before.values())).device.type
        mesh = init_device_mesh(device, (_world_size(),))
        for part in (*blocks, module):
            _shard(part, mesh)
        self._units[id(module)] = _units(module, blocks)
        repoint(replacements(before, module), how.optimizers, _distribute, how.warn)
        shards = self._shards[id(module)] = Shards(module)
        for part in (*blocks, module):
            share_attributes(part)
        self._patches.add(f"calls of the parts of {name}", shards.release)
        return module._call_impl

    def without_gradients(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return what gathers the module for its method."""
        return self._shards[id(module)].method(method)

    def checks(self, evidence: Evidence) -> list[Check]:
        """Return whether as many bytes were gathered and scattered as the passes over the parameters predict."""
        if len(evidence.checksums) == 1:
            text = "what sharding costs: one rank holds every parameter whole, and torch gathers and scatters nothing"
            return [*super().checks(evidence), Check(name="parameters gathered", ok=None, text=text)]
        return [
            *super().checks(evidence),
            self._gathered(evidence),
            self._scattered(evidence),
        ]

    def why_apart(self) -> str:
        """Return also what of a module's gradients FSDP does not see."""
        return super().why_apart() or self._left_whole()

    def _left_whole(self) -> str:
        """Return why a backward pass left gradients in whole parameters, as the end of a sentence; or nothing."""
        left = next((shards.root for shards in self._shards.values() if _has_whole_gradients(shards.root)), None)
        if left is None:
            return ""
        past_outputs = _PAST_OUTPUTS.format(type(left).__name__.removeprefix("FSDP"))
        return self.passes.before_return() or self.passes.past_call() or past_outputs

    def _gathered(self, evidence: Evidence) -> Check:
        passes = [(unit, times) for module, times in evidence.forwards.items() for unit in self._units.get(module, ())]
        least = sum(unit.num_bytes * min(times, unit.backwards(evidence)) for unit, times in passes)
        most = sum(unit.num_bytes * times for unit, times in passes)
        return _bytes_fit("parameters gathered", "all_gather", least, most, evidence)

    def _scattered(self, evidence: Evidence) -> Check:
        padding = sum(self._padding.get(module, 0) * times for module, times in evidence.forwards.items())
        # Only what has a gradient is scattered, so not all of the padding need be there.
        least = evidence.gradient_bytes
        check = _bytes_fit("gradients scattered", "reduce_scatter", least, least + padding, evidence)
        late = next(filter(None, (_late_hook(shards.root) for shards in self._shards.values())), "")
        if late:
            return replace(check, ok=False, text=late)
        why = self.why_apart() if check.ok is False else self._left_whole()
        return replace(check, ok=False, text=f"gradients were not synchronised{why}") if why else check


def _shard(part: nn.Module, mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard

    try:
        with _own_attributes(type(part)):
            fully_shard(part, mesh=mesh)
    except TypeError as error:
        if "remove_duplicate" in str(error):
            raise ConversionError(
                "fully_shard calls named_parameters(remove_duplicate=False) of each module, and a method that "
                f"overrides it does not take that ({error}): let it take **kwargs and pass them on"
            ) from None
        if "object layout" not in str(error):
            raise
        name = type(part).__name__
        raise ConversionError(
            f"fully_shard gives a module a class derived from its own, which Python refuses for one of {name} ({error})"
        ) from None


def _bytes_fit(name: str, collective: str, least: int, most: int, evidence: Evidence) -> Check:
    seen = evidence.counters.collectives.get(collective)
    num_bytes = seen.num_bytes if seen else 0
    text = f"{units.size(num_bytes)} by {collective} in a step, {units.size(least)} predicted"
    if num_bytes < least * (1 - BYTES_WITHIN):
        return Check(name=name, ok=False, text=f"parameters were not sharded: {text}")
    if num_bytes > most * (1 + BYTES_WITHIN):
        return Check(name=name, ok=None, text=f"{text}: forwards without gradients, or repeated ones, gather as well")
    return Check(name=name, ok=True, text=text)


def _units(module: nn.Module, blocks: Sequence[nn.Module]) -> tuple[Unit, ...]:
    """Return the root of a sharded module and its blocks.

    What lies in a block is gathered twice, because a block is resharded after its forward; the rest, in the root,
    stays gathered until its backward (fully_shard's default for `reshard_after_forward`).
    """
    inside = {id(p) for block in blocks for p in block.parameters()}
    root = Unit(
        parameters=frozenset(map(id, module.parameters())),
        num_bytes=sum(_padded_bytes(p) for p in module.parameters() if id(p) not in inside),
    )
    return root, *(_block(block) for block in blocks)


def _block(block: nn.Module) -> Unit:
    return Unit(
        parameters=frozenset(map(id, block.parameters())), num_bytes=2 * sum(map(_padded_bytes, block.parameters()))
    )


def _padded_bytes(parameter: nn.Parameter) -> int:
    """Return the bytes of a parameter whose first dimension is padded to equal shards, as fully_shard does."""
    ranks = _world_size()
    rows = math.ceil(parameter.shape[0] / ranks) * ranks
    return rows * (parameter.numel() // max(1, parameter.shape[0])) * parameter.element_size()


def _refuse_sharded(module: nn.Module, sharded: Iterable[Shards]) -> None:
    """Refuse a module that has parameters in common with one of those that were sharded before.

    It has their shards where it is tied to them, and whole ones of a module inside of it that is gathered just now.
    """
    holders = {
        number: shards.root for shards in sharded for number in (*shards.parameters, *map(id, shards.root.parameters()))
    }
    for name, parameter in module.named_parameters():
        holder = holders.get(id(parameter))
        if holder is not None:
            raise ConversionError(
                f"FSDP shards a parameter once, and {name} was sharded as one of "
                f"{type(holder).__name__.removeprefix('FSDP')}, which the script called before. Put what trains the "
                "same parameters into one module, and call that one alone; call what trains none under torch.no_grad()"
            )


def _refuse_scalars(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dim() == 0:
            raise ConversionError(
                f"FSDP cannot shard the parameter {name}: it has no dimension. Give it the shape (1,)"
            )


def _refuse_sparse(module: nn.Module) -> None:
    from torch import nn

    for name, part in module.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse and part.weight.requires_grad:
            raise ConversionError(
                f"FSDP cannot reduce sparse gradients, which {name or 'it'} makes: leave out sparse=True there"
            )


def _refuse_hooks(module: nn.Module, warn: Callable[[str], None]) -> None:
    from dpdoctor.worker.modes import _hooks

    for hook in _hooks.registered(module):
        if hook.only_logs:
            warn(UNLOGGED)
            continue
        raise ConversionError(
            f"FSDP puts a shard in place of the parameter {hook.parameter}, and {_hooks.named(hook.function)}, which "
            f"the script registered on it ({hook.by}), would not run. {_INSTEAD.get(hook.by, _BY_HAND)}"
        )


def _has_whole_gradients(module: nn.Module) -> bool:
    """Return whether a backward pass left gradients in gathered parameters: those that FSDP reduces are in shards."""
    from torch.distributed.tensor import DTensor

    return any(not isinstance(p, DTensor) and p.grad is not None for p in module.parameters())


def _late_hook(module: nn.Module) -> str:
    """Return that a hook which the script registered after its parameter was sharded does not run; or nothing."""
    from dpdoctor.worker.modes import _hooks

    late = next((hook for hook in _hooks.registered(module) if hook.is_on_node), None)
    if late is None:
        return ""
    return (
        f"{_NO_GRADIENT}, and {_hooks.named(late.function)}, registered on {late.parameter} ({late.by}), does not run. "
        f"{_BY_HAND}"
    )


@contextmanager
def _own_attributes(kind: type[nn.Module]) -> Iterator[None]:
    """Let what is set on a module stay there: a wrapper may pass it on to the module inside, its new class as well."""
    from torch import nn

    own = vars(kind).get("__setattr__")
    kind.__setattr__ = nn.Module.__setattr__  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del kind.__setattr__
        else:
            kind.__setattr__ = own  # type: ignore[method-assign]


def _lay_out(module: nn.Module, warn: Callable[[str], None]) -> None:
    """Make every parameter contiguous: fully_shard takes no other."""
    others = [name for name, parameter in module.named_parameters() if not parameter.is_contiguous()]
    for name in others:
        parameter = module.get_parameter(name)
        parameter.data = parameter.data.contiguous()
    if others:
        laid_out = units.count(len(others), "parameter")
        warn(
            f"{laid_out} of {type(module).__name__} made contiguous, {others[0]} first: fully_shard takes no others, "
            "such as those of memory_format=torch.channels_last. An input in that format keeps it"
        )


def _where_it_changes(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `_apply` of sharded modules, as `.to()` calls it, that leaves alone what it would not change.

    torch would swap each sharded tensor with itself, which it cannot while a profiler holds it.
    """
    import torch

    @functools.wraps(apply)
    def apply_where_it_changes(module: Any, change: Callable[[torch.Tensor], Any], *args: Any, **kwargs: Any) -> Any:
        module.reshard()
        with torch.no_grad():
            held = (*module.parameters(), *module.buffers())
            gradients = (parameter.grad for parameter in held if parameter.grad is not None)
            is_as_it_is = all(change(tensor) is tensor for tensor in (*held, *gradients))
        return module if is_as_it_is else apply(module, change, *args, **kwargs)

    return apply_where_it_changes


def _broadcast(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers; fully_shard would make a patchwork of different ones."""
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, src=0)
            if not tensor.is_contiguous():
                tensor.copy_(whole)


def _world_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def _distribute(value: torch.Tensor, like: nn.Parameter) -> torch.Tensor:
    """Return a state tensor sharded as its parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value, like.device_mesh, like.placements)


MODE = FSDP()
