"""What the sentences of a verdict are made of: where a step's time goes, and how modes stand to one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpdoctor import units
from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.report.text import listed_figures, with_interval

# Below this share of a step waiting for data is not the first thing to tell; the longest phase is.
NOTABLE_WAIT_RATIO = 0.10
# A gain below this is not worth a word.
NOTABLE_GAIN = 0.05

TONES = {"faster": "good", "slower": "bad", "alike": "warn", "unclear": "plain", "unknown": "plain"}

_PHASE_WORDS = {
    "data_wait": "waiting for data",
    "h2d": "copies to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "other": "other code of the script",
    "communication": "communication",
}


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


def ranks(mode: ModeSummary) -> str:
    """Return a mode's ranks or, where replicas were placed by hand, where they lie."""
    return mode.placement or units.count(mode.world_size, "rank")


def devices(mode: ModeSummary) -> str:
    """Return what a mode runs on: its ranks or, where one process drives all of them, its devices."""
    by_rank = mode.placement or mode.world_size > 1
    return ranks(mode) if by_rank else units.count(mode.num_devices, "device")


def against_one(speedup: Figure) -> str:
    """Return how a mode stands to one device: faster, slower or alike; unclear without an interval; else unknown."""
    if speedup.value is None:
        return "unknown"
    if speedup.low is None or speedup.high is None:
        return "unclear"
    if speedup.high < 1:
        return "slower"
    return "faster" if speedup.low > 1 else "alike"


def linear(mode: ModeSummary) -> Figure | None:
    """Return the mode's share of linear scaling; None for one device, where the word says nothing."""
    return mode.scaling_efficiency if mode.num_devices > 1 else None


def of_linear(modes: Sequence[ModeSummary]) -> str:
    """Return the modes' shares of linear scaling in brackets; empty where one has none."""
    shares = [share for mode in modes if (share := linear(mode)) is not None and share.value is not None]
    return f" ({listed_figures(shares)} of linear)" if len(shares) == len(modes) else ""


def loader_control(mode: ModeSummary) -> str | None:
    """Return in a clause what one device would give with as many loader processes as all ranks of the mode have.

    None where that is unknown or next to nothing: then the mode's gain is its own.
    """
    fall = mode.waterfall
    if fall is None or not fall.ideal.value:
        return None
    factor = _sped_up(fall.ideal.value, fall.terms["loader_processes"])
    if factor is None or factor.value is None or factor.value - 1 < NOTABLE_GAIN:
        return None
    return f"one device with as many loader processes would give {with_interval(factor)}, simulated"


def _sped_up(step: float, change: Figure) -> Figure | None:
    """Return how many times as fast steps are that take `change` more than `step`; None where that is unknown."""
    value, low, high = (
        None if end is None or step + end <= 0 else step / (step + end)
        for end in (change.value, change.high, change.low)
    )
    return None if value is None else Figure(value=value, low=low, high=high, unit="x")


def rests_on(figure: Figure) -> str:
    """Return what an interval of a speedup is taken over."""
    if figure.scope == "launches":
        return f"over {units.count(figure.n, 'launch')}."
    if figure.scope == "calibrated":
        return "between launches, by how far those of this script differ here."
    return "over the windows of one launch each. Another launch may differ by more."


def scaling_words(mode: ModeSummary) -> str:
    """Return which kind of scaling the speedup shows."""
    if mode.native is not None and mode.batch.rule == "own":
        return "How much of a batch a rank takes is the script's own affair."
    if mode.batch.rule == "global":
        return "Strong scaling: the devices share the script's batch."
    if mode.conversion is not None and mode.conversion.same_samples:
        return "Each device trains on the same batches: a step trains on no more samples than on one device."
    if mode.native is not None:
        return "Weak scaling: a rank takes as many samples as one alone does, so a step trains on more samples."
    return "Weak scaling: each device takes the script's whole batch, so a step trains on more samples."
