"""launch_bound: the GPU waits for the host to launch its next kernel."""

from __future__ import annotations

from statistics import median

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.breakdown import LAUNCHING
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import TRACED_STEPS, rank_words, why_no_steps

# Host-bound begins at 10% of the step in TraceML 0.5 (residual) and gpuprof; a profiler's own cost lies below that.
WARNING = 0.10
# Kernels that begin so soon after their launch were waited for: HTA calls 5 to 20 us the usual time of a launch.
LAUNCH_NS = 20_000
# What runs as compiled, in an operator's name.
COMPILED = ("CompiledFunction", "Torch-Compiled")
NS = 1e-9


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found = facts.traces
    if not facts.on_gpu:
        return None
    if not found.common.steps:
        return CannotTell(reason=why_no_steps(facts, "what the GPU waits for"))
    delay_ns = _delay_ns(found)
    if delay_ns is None:
        return CannotTell(reason="the trace shows no call that launched a single kernel")
    cost = facts.untraced_lost_to(*LAUNCHING)
    if cost.value is None or cost.value < WARNING or delay_ns > LAUNCH_NS:
        return None
    kernel_ns = _kernel_ns(found)
    remedy, short, code = _remedy(facts, found)
    return Finding(
        rule="launch_bound",
        mode=facts.name,
        severity=severity(cost.value),
        status="inferred",
        title=f"the GPU waits for the host to launch work: {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(
            f"the GPU idles {units.share(cost.value)} of a step while the host launches operators or runs Python"
            f"{rank_words(facts)}",
            f"half of the kernels begin within {units.seconds(delay_ns * NS)} of their launch: the host is not ahead",
            *([f"a kernel takes {units.seconds(kernel_ns * NS)} on average"] if kernel_ns else []),
            *([] if facts.mode.step.value else [TRACED_STEPS]),
        ),
        cause=None,
        remedy=remedy,
        short_remedy=short,
        code=code,
        speedup=faster_without(cost),
        speedup_basis="at most",
    )


def _remedy(facts: ModeFacts, found: Traces) -> tuple[str, str, str | None]:
    """Return what to do, also in a few words, and the line to write, without what the script does already."""
    if any(digest.data_parallel for digest in found.digests):
        way = (
            "use DistributedDataParallel: the threads of nn.DataParallel's replicas launch in turn, in one interpreter"
        )
        return way, "use DistributedDataParallel", "DistributedDataParallel(model)"
    names = [operator.name for digest in found.digests for operator in digest.operators]
    larger = "give each launch more work, by a larger batch as far as memory allows"
    fused = "" if any("_fused_" in name for name in names) else ", and a fused optimizer"
    breaks = facts.mode.counters.graph_breaks if facts.mode.counters else None
    if breaks is not None or any(mark in name for name in names for mark in COMPILED):
        graphs = 'or let what is compiled replay as CUDA graphs: mode="reduce-overhead", where that is not its mode yet'
        return f"{larger}; {graphs}{fused}", "give each launch more work by a larger batch", None
    compiled = "or launch less for the same work by torch.compile, which fuses kernels and replays them as CUDA graphs"
    short = "compile the model with CUDA graphs (torch.compile), or use a larger batch"
    return f"{larger}; {compiled}{fused}", short, 'model = torch.compile(model, mode="reduce-overhead")'


def _delay_ns(found: Traces) -> float | None:
    delays = [d.launch_delay.p50_ns for digest in found.digests for d in digest.devices if d.launch_delay]
    return median(delays) if delays else None


def _kernel_ns(found: Traces) -> float | None:
    total = sum(kernel.total_ns for digest in found.digests for kernel in digest.kernels)
    count = sum(kernel.count for digest in found.digests for kernel in digest.kernels)
    return total / count if count else None


RULE = Rule(
    name="launch_bound",
    title="Launch-bound",
    what="The GPU finishes its kernels faster than the host launches new ones; a batch that is too small does this.",
    why="The GPU idles between kernels for as long as the host's Python and dispatch take, whatever its speed.",
    how="From the trace: idle time of the GPU while the launching thread dispatches operators, scaled to the step "
    "without a profiler (where ranks wait for each other, of the one that idles longest), together with a launch delay "
    "of microseconds; milliseconds would mean that the host is ahead.",
    remedy="A larger batch, torch.compile with CUDA graphs, fused optimizers; fewer and larger operators.",
    verified=True,
    check=_check,
)
