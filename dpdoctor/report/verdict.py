"""The answer in words. The page and the terminal both take it from here, so they cannot disagree."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis import Figure, ModeSummary, RunSummary
from dpdoctor.analysis.analyse import BASELINE
from dpdoctor.report.blocks import Verdict
from dpdoctor.report.text import figure_text, interval_text, mode_label, sentence

# Below this share of a step waiting for data is not the first thing to tell; the longest phase is.
NOTABLE_WAIT_RATIO = 0.10

_PHASE_WORDS = {
    "data_wait": "waiting for data",
    "h2d": "copies to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "other": "other code of the script",
}


def phase_words(phase: str) -> str:
    """Return what a phase is, in words."""
    return _PHASE_WORDS.get(phase, phase)


def why_withheld(mode: ModeSummary) -> str | None:
    """Return why a mode's figures must not be shown, or None when they may be.

    What a failed mode measured before it failed looks like a result and is none; run.json still has it.
    """
    if mode.status in ("failed", "skipped"):
        return mode.reason or "no reason was recorded"
    if mode.adoption is not None and mode.adoption.proved is False:
        failed = next(check for check in mode.adoption.proof if check.ok is False)
        return f"adoption was not proved: {failed.name}: {failed.text}"
    return None


def shown_modes(summary: RunSummary) -> dict[str, ModeSummary]:
    """Return the modes whose figures may be shown, in the order of the run."""
    return {name: mode for name, mode in summary.modes.items() if why_withheld(mode) is None}


def focus(summary: RunSummary) -> str | None:
    """Return the mode that the headline is about: the fastest parallel one, else the baseline, else None."""
    measured = {
        name: mode.throughput.value
        for name, mode in shown_modes(summary).items()
        if mode.throughput.value is not None and mode.status == "ok"
    }
    parallel = [name for name in measured if name != BASELINE]
    return max(parallel or measured, key=lambda name: measured[name], default=None)


def headline(summary: RunSummary) -> Verdict:
    """Return the run's answer in one sentence."""
    name = focus(summary)
    if name is not None:
        return mode_verdict(name, summary.modes[name])
    if not summary.modes:
        return Verdict(tone="bad", sentence="This run has no modes: nothing was measured.")
    if all(mode.status == "ok" for mode in summary.modes.values()):
        return Verdict(tone="plain", sentence="The script was adopted in every mode; nothing was measured.")
    reasons = [mode_verdict(name, mode).sentence for name, mode in summary.modes.items()]
    return Verdict(tone="bad", sentence="No mode could be measured.", detail=" ".join(reasons))


def mode_verdict(name: str, mode: ModeSummary) -> Verdict:
    """Return one mode's result in one sentence."""
    label = mode_label(name)
    withheld = why_withheld(mode)
    if withheld is not None:
        tone, word = ("muted", "was skipped") if mode.status == "skipped" else ("bad", "failed")
        return Verdict(tone=tone, sentence=sentence(f"{label} {word}: {withheld}"))
    if mode.throughput.value is None:
        return Verdict(tone="warn", sentence=sentence(f"{label} was not measured: {mode.throughput.reason}"))
    if mode.status == "inactive":
        reason = (mode.reason or "no reason was recorded").rstrip(".")
        plain = f"the plain module trains {figure_text(mode.throughput)}"
        return Verdict(tone="muted", sentence=sentence(f"{label} changed nothing: {reason}; {plain}"))
    parts = [_speed(_where(name, mode), mode), *_time(mode)]
    if mode.status != "ok":
        parts.append(f"it was {mode.status}: {mode.reason or 'no reason was recorded'}")
    return Verdict(tone=_tone(mode), sentence=sentence("; ".join(parts)), detail=_detail(mode))


def is_baseline(name: str) -> bool:
    """Return whether the other modes are compared with this one."""
    return name == BASELINE


def linear(mode: ModeSummary) -> Figure | None:
    """Return the mode's share of linear scaling; None for one device, where the word says nothing."""
    return mode.scaling_efficiency if mode.num_devices > 1 else None


def wait_ratio(mode: ModeSummary) -> float | None:
    """Return the share of a step's host time spent waiting for data; None when a phase is unknown."""
    shares = phase_ratios(mode)
    return None if shares is None else shares.get("data_wait")


def phase_ratios(mode: ModeSummary) -> dict[str, float] | None:
    """Return each phase's share of a step's host time; None when a phase is unknown or nothing took time."""
    values = {name: figure.value for name, figure in mode.phases.items() if figure.value is not None}
    total = sum(values.values())
    if len(values) < len(mode.phases) or total <= 0:
        return None
    return {name: value / total for name, value in values.items()}


def _where(name: str, mode: ModeSummary) -> str:
    if is_baseline(name):
        return mode_label(name)
    # DataParallel's one process drives several devices; elsewhere each rank drives one.
    where = units.count(mode.world_size, "rank") if mode.world_size > 1 else units.count(mode.num_devices, "device")
    return f"{mode_label(name)} on {where}"


def _speed(where: str, mode: ModeSummary) -> str:
    speedup = mode.speedup
    if speedup.value is None:
        return f"{where} trains {figure_text(mode.throughput)}"
    share = linear(mode)
    factor = figure_text(speedup)
    of_linear = f" ({figure_text(share)} of linear)" if share is not None and share.value is not None else ""
    if speedup.low is None or speedup.high is None:
        return f"{where} gives {factor} of one device{of_linear}, from too few windows for an interval"
    if speedup.high < 1:
        return f"{where} is slower than one device: {factor}{of_linear}"
    if speedup.low <= 1:
        return f"{where} is not measurably faster or slower than one device: {factor} ({interval_text(speedup)})"
    return f"{where} gives {factor} of one device{of_linear}"


def _time(mode: ModeSummary) -> Iterator[str]:
    """Yield the one thing to know about where the step's time goes."""
    shares = phase_ratios(mode)
    if shares is None:
        return
    waiting = shares.get("data_wait", 0.0)
    if waiting >= NOTABLE_WAIT_RATIO:
        yield f"the host waits for data in {units.share(waiting)} of each step"
    else:
        longest = max(shares, key=lambda name: shares[name])
        yield f"on the host {phase_words(longest)} is the longest part of a step ({units.share(shares[longest])})"


def _tone(mode: ModeSummary) -> str:
    if mode.status != "ok":
        return "warn"
    if mode.speedup.low is None or mode.speedup.high is None or mode.speedup.value is None:
        return "plain"
    if mode.speedup.high < 1:
        return "bad"
    return "good" if mode.speedup.low > 1 else "warn"


def _detail(mode: ModeSummary) -> str:
    """Return what a speedup rests on: its interval, its scope and what was kept equal."""
    if mode.speedup.value is None:
        return ""
    return " ".join(part for part in (_spread(mode.speedup), scaling_words(mode)) if part)


def _spread(speedup: Figure) -> str:
    interval = interval_text(speedup)
    if not interval:
        return ""
    if speedup.scope == "launches":
        return f"95 % interval over {units.count(speedup.n, 'launch')}: {interval}."
    return f"95 % interval within this run: {interval}, from one launch each. Another launch may differ by more."


def scaling_words(mode: ModeSummary) -> str:
    """Return which kind of scaling the speedup shows."""
    if mode.batch.rule == "global":
        return "Strong scaling: the devices share the script's batch."
    return "Weak scaling: each device takes the script's whole batch, so a step trains on more samples."
