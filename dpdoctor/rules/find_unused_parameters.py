"""find_unused_parameters: DDP searches the graph in every step for parameters that get no gradient."""

from __future__ import annotations

from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.weighing import SMALL
from dpdoctor.digest import IDLE_CAUSES, Digest
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import why_no_steps, wrapped_line

# How torch's reducer marks the search in a trace.
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found, conversion = facts.traces, facts.mode.conversion
    searches = any(_search_ns(digest) for digest in found.digests)
    is_on = conversion is not None and conversion.find_unused_parameters
    if facts.launch is None or not (is_on or searches):
        return None
    if not found:
        return CannotTell(reason="find_unused_parameters is on, and there is no trace that shows what it costs")
    shares = [_search_ns(digest) / total for digest in found.digests if (total := _traced_ns(digest))]
    searching = stats.mean_interval(shares, "ratio", reason="the trace is empty")
    if searching.value is None or searching.value < SMALL:
        return None
    idle = facts.untraced_lost_to(*IDLE_CAUSES) if facts.on_gpu else searching
    if idle.value is None:
        return CannotTell(reason=why_no_steps(facts, "whether the GPU waits while its host searches"))
    cost = min(searching, idle, key=lambda share: share.value or 0.0)
    assert cost.value is not None
    if cost.value < SMALL:
        return None
    unused = [name for unit in (conversion.modules if conversion else ()) for name in unit.unused]
    return Finding(
        rule="find_unused_parameters",
        mode=facts.name,
        severity=severity(cost.value),
        status="inferred",
        title=f"searching for unused parameters takes {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(
            f"in the trace the search takes {units.share(searching.value)} of the time, before each backward",
            *([] if cost is searching else [f"the GPU idles {units.share(cost.value)} of a step, and waits no longer"]),
            *([f"{units.count(len(unused), 'parameter')} got no gradient, {unused[0]} among them"] if unused else []),
            "DDP then also reduces a map of used parameters; that part of the cost is not counted here",
        ),
        cause=None,
        remedy="freeze or remove the parameters that get no gradient and leave find_unused_parameters off; where the "
        "same ones are used in every step, static_graph=True searches once",
        short_remedy="leave find_unused_parameters off",
        code="DistributedDataParallel(model, static_graph=True)",
        line=wrapped_line(facts),
        speedup=faster_without(cost),
        speedup_basis="at most" if facts.on_gpu else "predicted",
    )


def _search_ns(digest: Digest) -> int:
    return sum(operator.total_ns for operator in digest.operators if operator.name == SEARCH)


def _traced_ns(digest: Digest) -> float:
    return fmean([device.whole.total_ns for device in digest.devices]) if digest.devices else 0.0


RULE = Rule(
    name="find_unused_parameters",
    title="Search for unused parameters",
    what="find_unused_parameters=True makes DDP walk the graph of every step for parameters that get no gradient.",
    why="The walk comes before the backward, on the host, in each step; a second all-reduce tells the ranks what was "
    "found.",
    how="Whether it is on is known from the conversion; the trace shows how long the search takes, and how long a GPU "
    "idles, which waits for its host no longer.",
    remedy="Freeze or remove the parameters that get no gradient and leave the option off, or set static_graph=True "
    "where the used ones never change.",
    verified=False,
    check=_check,
)
