"""optimizer_unfused: a fused optimizer would be faster."""

from __future__ import annotations

from itertools import zip_longest

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.catalog import FUSED
from dpdoctor.rules.rule import Rule, would_save

FRAMEWORKS = 'where a framework builds it, by its own option, as optim="adamw_torch_fused" of transformers\' Trainer'


def _check(facts: ModeFacts) -> Finding | None:
    built = _built(facts)
    names = [name for name in built if name in FUSED]
    fused = f"give fused=True to {' and '.join(names) or 'the optimizer'}"
    return would_save(
        facts,
        "optimizer_unfused",
        "fused_optimizer",
        what="a fused optimizer",
        evidence=_of_phase(facts),
        tried="With parameters updated in one kernel",
        remedy=f"{fused}; {FRAMEWORKS}",
        short_remedy=fused,
        code=f"torch.optim.{names[0]}(model.parameters(), ..., fused=True)" if names else None,
        line=built[names[0]] or None if names else None,
    )


def _built(facts: ModeFacts) -> dict[str, str]:
    """Return the line where the first optimizer of each class is built, by class; "" where it is not known."""
    conversion = facts.mode.conversion
    if conversion is None:
        return {}
    built: dict[str, str] = {}
    for name, line in zip_longest(conversion.optimizers, conversion.optimizers_built, fillvalue=""):
        built.setdefault(name, line)
    return built


def _of_phase(facts: ModeFacts) -> tuple[str, ...]:
    """Return what the optimizer takes by the host's clock, behind which a GPU works on."""
    phase, step = facts.mode.phases.get("optimizer"), facts.mode.step.value
    if facts.on_gpu or phase is None or phase.value is None or not step:
        return ()
    return (f"The optimizer takes {units.share(phase.value / step)} of a step.",)


RULE = Rule(
    name="optimizer_unfused",
    title="A fused optimizer would be faster",
    what="The optimizer updates parameters by several operators for each, or for each kind of operator, instead of one "
    "kernel for all.",
    why="Each operator reads and writes parameters, gradients and state anew, and has to be launched. On the CPU torch "
    "takes the parameters one by one unless it is told otherwise; on a GPU by lists, which is still several kernels.",
    how="The ablation fused_optimizer sets what fused=True sets, in windows between the full ones; where optimizers "
    "take less than 5% of a step on the CPU, it is left out.",
    remedy="Give fused=True to torch's AdamW, Adam, SGD or Adagrad. The update is the same but for rounding.",
    verified=True,
    check=_check,
)
