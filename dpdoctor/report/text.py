"""Figures and modes in words, alike on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpdoctor import units
from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.report.blocks import Cell

NOTHING = "\N{EM DASH}"

_FORMATS: dict[str, Callable[[float], str]] = {
    "s": units.seconds,
    "x": units.times,
    "ratio": units.share,
    "bytes": units.size,
}
_MODE_LABELS = {
    "single": "One device",
    "dp": "DataParallel",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "native": "The script itself",
}
_STATUS_TONES = {"ok": "good", "failed": "bad", "interrupted": "warn"}


def mode_label(name: str) -> str:
    """Return a mode's name as people write it; a mode unknown here keeps its own."""
    return _MODE_LABELS.get(name, name)


def status_tone(status: str) -> str:
    """Return the tone of a mode's or rank's status."""
    return _STATUS_TONES.get(status, "muted")


def amount(value: float, unit: str) -> str:
    """Return a number with its unit."""
    formatted = _FORMATS.get(unit)
    return formatted(value) if formatted else units.quantity(value, unit)


def figure_text(figure: Figure) -> str:
    """Return a figure's value, or `unknown`."""
    return "unknown" if figure.value is None else amount(figure.value, figure.unit)


def interval_text(figure: Figure) -> str:
    """Return `low to high` with its unit; empty where there is no interval."""
    if figure.low is None or figure.high is None:
        return ""
    return units.span(amount(figure.low, figure.unit), amount(figure.high, figure.unit))


def short_interval(figure: Figure) -> str:
    """Return the interval as it stands below the figure: without the unit where that would only repeat it."""
    _, space, unit = figure_text(figure).partition(" ")
    return interval_text(figure).removesuffix(f"{space}{unit}") if space else interval_text(figure)


def batch_text(num_samples: float | None) -> str:
    """Return a mean batch size; whole where every step had the same."""
    if num_samples is None:
        return "unknown"
    return units.whole(int(num_samples)) if num_samples.is_integer() else units.digits(num_samples)


def figure_cell(figure: Figure) -> Cell:
    """Return the cell of a figure: its value over its interval, and the reason where something is missing."""
    notes = [note for note in (short_interval(figure), figure.reason or "") if note]
    return Cell(text=figure_text(figure), note="; ".join(notes))


def interval_words(modes: Mapping[str, ModeSummary]) -> str:
    """Return how far the 95 % intervals of these modes hold, and what they are taken over."""
    groups: dict[str, list[str]] = {}
    for name, mode in modes.items():
        if mode.throughput.value is not None:
            group, behind = _scope(mode.throughput)
            groups.setdefault(group, []).append(f"{mode_label(name)} {behind}")
    words = [f"{group}: {', '.join(listed)}." for group, listed in groups.items()]
    if any(mode.speedup.value is not None and mode.speedup.scope == "run" for mode in modes.values()):
        words.append("Speedups rest on one launch each.")
    return " ".join(words)


def _scope(figure: Figure) -> tuple[str, str]:
    if figure.low is None:
        return "No interval", f"({units.count(figure.n, 'launch' if figure.scope == 'launches' else 'window')})"
    if figure.scope == "launches":
        return "95 % intervals between launches", f"({units.count(figure.n, 'launch')})"
    return "95 % intervals within this run", f"({units.count(figure.n, 'window')})"


def sentence(text: str) -> str:
    """Return text that ends with one full stop."""
    return f"{text.rstrip().rstrip('.')}."


def left_alone(num_files: int) -> str:
    """Return what became of the files that scripts would have written."""
    were = "was" if num_files == 1 else "were"
    return f"{units.count(num_files, 'file')} that the script would have written or removed {were} left alone"
