"""What a step consists of, in the four parts that every mode has and that add up to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.analysis.weighing import SMALL, above_zero, is_loss
from dpdoctor.report.text import listed_figures

# Keys of the parts, in the order in which they are drawn.
DATA, COMPUTE, COMMUNICATION, OTHER = "data", "compute", "communication", "other"
LABELS = {DATA: "Data wait", COMPUTE: "Compute", COMMUNICATION: "Communication", OTHER: "Other"}
AT_MOST = "\N{LESS-THAN OR EQUAL TO}"
# The experiment in which ranks do not communicate; what it gains is what communication costs.
_ABLATION = "no_comm"
# Communication is drawn in forward and backward up to this, and the rest of it elsewhere in the step: how it is divided
# is not measured, but that they compute is known.
_MOST_IN_PASSES = 0.9
# The script, or torch's hooks in it.
_GAINED = "what a step gains without communication"
_CALLED = "calls of collectives, on the host's clock"
_PHASE_WORDS = {
    "data_wait": "waiting for data",
    "h2d": "copies to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "other": "other code of the script",
    "communication": "communication",
}
# Below this share of a step waiting for data is not the first thing to tell; the longest phase is.
NOTABLE_WAIT_RATIO = 0.10


class StepPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a step.

    Attributes:
        key: of LABELS.
        share: of the step; ratio.
        text: what it is and what it was taken from.
        is_bound: it is no more than that, as communication that nobody measured is in it.
        is_gain: it is by how much a step is shorter without it, by an ablation.
    """

    key: str
    share: float
    text: str
    is_bound: bool = False
    is_gain: bool = False

    @property
    def shown(self) -> str:
        """Return the share as text."""
        return f"{AT_MOST if self.is_bound else ''}{units.share(self.share)}"


def step_parts(mode: ModeSummary) -> tuple[StepPart, ...]:
    """Return the parts of a mode's step, which add up to 1; none where they are unknown.

    On a GPU they are taken from the trace, as the host runs ahead of the device, and scaled to the step without a
    profiler where that is known. On the CPU they are the host's phases in windows without a profiler; communication,
    which happens inside of forward and backward as far as they have room for it, is what the step gains without it or,
    where no experiment shows a gain, what the trace shows of it that nothing hides; where the script was seen to make
    every call, it is that phase of the host, as traced steps are few.
    """
    if any(rank.device_type != "cpu" for rank in mode.ranks):
        return tuple(_of_trace(mode))
    return tuple(_of_host(mode))


def _of_trace(mode: ModeSummary) -> Iterator[StepPart]:
    budget = mode.breakdown
    if budget is None or not budget.step.value or budget.exposed_comm.value is None:
        return
    idle, communication = _value(budget.idle), budget.exposed_comm.value
    # A profiler slows the host and hardly the device: without one a step has the same work and less idle time, and
    # ranks wait less for each other in a collective.
    work = budget.step.value - idle - communication
    step = max(mode.step.value or budget.step.value, work)
    communication = min(communication, step - work)
    of_idle = (step - work - communication) / idle if idle else 0.0
    shares = {
        DATA: _value(budget.idle_by.get("data")) * of_idle / step,
        COMPUTE: _value(budget.compute) / step,
        COMMUNICATION: communication / step,
    }
    shares[OTHER] = max(0.0, 1 - sum(shares.values()))
    words = {
        DATA: "the device idling while the host waits for data",
        COMPUTE: "kernels computing",
        COMMUNICATION: "communication that no computation hides",
        OTHER: "idle time for other reasons than data, and copies",
    }
    for key, share in shares.items():
        yield StepPart(key=key, share=share, text=f"{words[key]}, from the trace")


def _of_host(mode: ModeSummary) -> Iterator[StepPart]:
    ratios = phase_ratios(mode)
    if ratios is None:
        return
    passes = ratios.get("forward", 0.0) + ratios.get("backward", 0.0)
    waits, source = _communication(mode)
    data, called = ratios.get("data_wait", 0.0), ratios.get("communication", 0.0)
    rest = max(passes, 1 - data - called)
    within = min(rest, max(0.0, waits - called))
    # What they have no room for is in the rest: the update exchanges, too, as one by norms of sharded parameters does.
    in_passes = max(min(within, _MOST_IN_PASSES * passes), within - (rest - passes))
    shares = {DATA: data, COMPUTE: passes - in_passes, COMMUNICATION: called + within}
    shares[OTHER] = max(0.0, 1 - sum(shares.values()))
    is_split = bool(source) or mode.num_devices == 1
    compute = "forward and backward" if is_split else "forward and backward, with communication"
    if within > in_passes:
        compute += ", drawn short: how much communication is in them and how much in the rest is not measured"
    words = {
        DATA: "waiting for the loader",
        COMPUTE: compute,
        COMMUNICATION: source if within else _CALLED,
        OTHER: "optimizer, copies and the rest of the loop",
    }
    for key, share in shares.items():
        is_bound = key == COMPUTE and not is_split
        yield StepPart(key=key, share=share, text=words[key], is_bound=is_bound, is_gain=words[key] == _GAINED)


def _communication(mode: ModeSummary) -> tuple[float, str]:
    """Return communication's share of a step and what it was taken from; 0 and nothing where it is unknown."""
    if mode.conversion is not None and mode.conversion.exchanges_nothing:
        return 0.0, "none: no collective is issued"
    gained = mode.ablations[_ABLATION].share if _ABLATION in mode.ablations else None
    if gained is not None and gained.value is not None and above_zero(gained):
        return gained.value, _GAINED
    if mode.native is not None and mode.native.is_clocked:
        return 0.0, _CALLED
    budget = mode.breakdown
    if mode.world_size > 1 and budget is not None and budget.step.value and budget.exposed_comm.value is not None:
        return budget.exposed_comm.value / budget.step.value, "communication that nothing hides, from the trace"
    # One round has no interval, and a wide one may hold much.
    is_little = gained is not None and gained.high is not None and gained.high < SMALL and not is_loss(gained)
    return 0.0, "without communication a step is not measurably shorter" if is_little else ""


def _value(figure: Figure | None) -> float:
    return 0.0 if figure is None or figure.value is None else figure.value


def phase_words(phase: str) -> str:
    """Return what a phase is, in words."""
    return _PHASE_WORDS.get(phase, phase)


def phase_ratios(mode: ModeSummary) -> dict[str, float] | None:
    """Return each known phase's share of a step's host time; None when one is missing or nothing took time.

    An unknown optimizer phase is not missing: what the script does without one is counted in `other`.
    """
    values = {name: figure.value for name, figure in mode.phases.items() if figure.value is not None}
    total = sum(values.values())
    if set(mode.phases) - set(values) - {"optimizer"} or total <= 0:
        return None
    return {name: value / total for name, value in values.items()}


def step_time(modes: Sequence[ModeSummary]) -> Iterator[str]:
    """Yield the one thing to know about where the step's time goes; nothing where the modes differ in it."""
    ratios = [found for mode in modes if (found := phase_ratios(mode)) is not None]
    if len(ratios) < len(modes):
        return
    longest = {max(found, key=lambda name: found[name]) for found in ratios}
    if all(found.get("data_wait", 0.0) >= NOTABLE_WAIT_RATIO for found in ratios):
        yield f"{_shares(ratios, 'data_wait')} of each step {'waits' if len(ratios) == 1 else 'wait'} for data"
    elif len(longest) == 1:
        (phase,) = longest
        yield f"on the host {phase_words(phase)} is the longest part of a step ({_shares(ratios, phase)})"


def _shares(ratios: Sequence[Mapping[str, float]], phase: str) -> str:
    return listed_figures([Figure(value=found[phase], unit="ratio") for found in ratios])
