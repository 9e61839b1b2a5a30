"""Figures and modes in words, alike on the page and in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE, Diagnosis, Figure, ModeSummary
from dpdoctor.catalog import MODE_BY_NAME
from dpdoctor.report.blocks import Absent, Cell, OfMode

NOTHING = "\N{EM DASH}"
THROUGHPUT_WORDS = "Throughput is global samples per second; it is not time to accuracy."

_FORMATS: dict[str, Callable[[float], str]] = {
    "s": units.seconds,
    "x": units.times,
    "ratio": units.share,
    "bytes": units.size,
}
# In a word: of a path, an identifier, a call or an assignment.
_NAMES = re.compile(r"[_/=(]|\w\.\w")
# Of what several modes are told: durations, as units.seconds writes them, and what --time-budget is to be given.
_TIMES = re.compile(r"((?<![\w.,])[\d,]+(?:\.\d+)? (?:ns|\u00b5s|ms|s|min|h)\b|(?<=--time-budget )\d+)")
_SECONDS = {"ns": 1e-9, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_STATUS_TONES = {"ok": "good", "failed": "bad", "interrupted": "warn"}


def run_title(analysis: Diagnosis) -> str:
    """Return what a run is called: its script, or the traces that it was made of."""
    script = analysis.summary.script.path
    return script if analysis.run.header.spec.is_module else PurePath(script).name


def mode_label(name: str) -> str:
    """Return what a mode is called: its own name; traces alone are of no mode."""
    return "traces" if name == TRACE_MODE else name


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
    """Return `low to high` with its unit, or its lower end alone; empty where there is none, or none of any width."""
    if figure.low is None or figure.low == figure.high:
        return ""
    low = amount(figure.low, figure.unit)
    return units.above(low) if figure.high is None else units.span(low, amount(figure.high, figure.unit))


def short_interval(figure: Figure) -> str:
    """Return the interval as it stands beside the figure: without the unit where that would only repeat it."""
    return with_interval(figure).partition(" (")[2].removesuffix(")")


def with_interval(figure: Figure) -> str:
    """Return a figure with its interval in brackets, where it has one."""
    text = figure_text(figure)
    if figure.low is None or figure.low == figure.high:
        return text
    high = None if figure.high is None else amount(figure.high, figure.unit)
    return units.within(text, amount(figure.low, figure.unit), high)


def batch_text(num_samples: float | None) -> str:
    """Return a mean batch size; whole where every step had the same."""
    if num_samples is None:
        return "unknown"
    return units.whole(int(num_samples)) if num_samples.is_integer() else units.digits(num_samples)


def figure_cell(figure: Figure) -> Cell:
    """Return the cell of a figure: its value over its interval; where something is missing, why, in a footnote."""
    return Cell(text=figure_text(figure), note=short_interval(figure), footnote=figure.reason or "", sort=figure.value)


def amount_cell(value: float | None, unit: str, *, missing: str = "unknown", note: str = "") -> Cell:
    """Return the cell of a number with its unit; `missing` where there is none."""
    return Cell(text=missing if value is None else amount(value, unit), note=note, sort=value)


def whole_cell(number: int | None, *, missing: str = "unknown", note: str = "") -> Cell:
    """Return the cell of a whole number; `missing` where there is none."""
    return Cell(text=missing if number is None else units.whole(number), note=note, sort=number)


def listed(words: Sequence[str]) -> str:
    """Return words as an enumeration: `a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def listed_figures(figures: Sequence[Figure]) -> str:
    """Return the values of figures as an enumeration, their unit once where it is the same: `1 and 2 samples/s`."""
    texts = [figure_text(figure) for figure in figures]
    _, _, unit = texts[0].partition(" ")
    if unit and all(text.endswith(f" {unit}") for text in texts):
        return f"{listed([text.removesuffix(f' {unit}') for text in texts])} {unit}"
    return listed(texts)


def by_reason(reasons: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each reason once with what it holds for, from (what, reason) pairs: {reason: `a, b and c`}.

    Those that differ in times alone are one.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for what, reason in reasons:
        names, told = found.setdefault(but_for_times(reason), ([], []))
        names.append(what)
        told.append(reason)
    return {as_one(told): listed([*dict.fromkeys(names)]) for names, told in found.values()}


def but_for_times(reason: str) -> str:
    """Return a reason without its times, which alone may differ where it is the same one."""
    return _TIMES.sub("", reason)


def as_one(reasons: Iterable[str]) -> str:
    """Return reasons that differ in times alone as one, with the range of each; the most of what is to be given."""
    texts = zip(*map(_TIMES.split, dict.fromkeys(reasons)), strict=True)
    return "".join(_range_of(each) if place % 2 else each[0] for place, each in enumerate(texts))


def _range_of(times: Sequence[str]) -> str:
    low, high = min(times, key=_seconds), max(times, key=_seconds)
    return high if low == high or high.isdecimal() else units.span(low, high)


def _seconds(time: str) -> float:
    number, _, unit = time.replace(",", "").partition(" ")
    return float(number) * _SECONDS.get(unit, 1.0)


def absent(reasons: Iterable[tuple[str, str]]) -> list[Absent]:
    """Return what is not shown, from (what, reason) pairs; every reason is given once."""
    return [Absent(what=what, reason=reason) for reason, what in by_reason(reasons).items()]


def absent_of(what: str, reasons: Mapping[str, str]) -> list[OfMode]:
    """Return of which modes something is not shown, from {mode: reason}."""
    return [OfMode(mode=mode, blocks=(Absent(what=what, reason=reason),)) for mode, reason in reasons.items()]


def remarks(modes: Mapping[str, ModeSummary]) -> dict[str, str]:
    """Return each remark on the conversion once, with the labels of the modes that it holds for."""
    wrapped = ((mode_label(name), mode.conversion) for name, mode in modes.items() if mode.conversion)
    return by_reason((label, warning) for label, conversion in wrapped for warning in conversion.warnings)


def sampler_text(sampler: str) -> str:
    """Return a loader's sampler as a reader knows it."""
    # What torch puts in the place of a sampler when the dataset is iterable: it yields None for ever.
    return "none (iterable)" if sampler == "_InfiniteConstantSampler" else sampler


def interval_words(modes: Mapping[str, ModeSummary]) -> str:
    """Return how far the 95% intervals of these modes hold, and what they are taken over."""
    figures = {mode_label(name): mode.throughput for name, mode in modes.items() if mode.throughput.value is not None}
    scopes = by_reason((label, _scope(figure)) for label, figure in figures.items())
    if len(scopes) == 1:
        return f"{next(iter(scopes))}{' each' if len(figures) > 1 else ''}."
    return " ".join(f"{scope}: {labels}." for scope, labels in scopes.items())


def _scope(figure: Figure) -> str:
    of_launches = figure.scope == "launches"
    number = units.count(figure.n, "launch" if of_launches else "window")
    if figure.low is None:
        return f"No interval from {number}"
    if figure.scope == "calibrated":
        return f"95% intervals between launches, by how far those of this script differ here, and {number}"
    return f"95% intervals between {number}" if of_launches else f"95% intervals within this run, over {number}"


def capital(text: str) -> str:
    """Return text that begins with a capital letter, but for a path, an identifier or a mode, which is what it is."""
    first = text.partition(" ")[0]
    is_name = _NAMES.search(first) or first.rstrip(":,") in MODE_BY_NAME
    return text if is_name else text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return text that ends with one full stop."""
    return f"{text.rstrip().rstrip('.')}."


def as_typed(line: str, command: Sequence[str]) -> str:
    """Return FILE:LINE with the path as it was typed in the command, if it was."""
    file, colon, number = line.rpartition(":")
    return f"{next((word for word in command if file.endswith(f'/{word}')), file)}{colon}{number}"


def clipped(text: str, most: int) -> str:
    """Return text of at most so many characters, on one line; of a longer one begin and end."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    tail = most // 3
    return f"{line[: most - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{line[-tail:]}"


def name_cell(name: str, most: int, *, note: str = "") -> Cell:
    """Return the cell of a name that may be of any length; of a shortened one the whole opens at a click."""
    short = clipped(name, most)
    return Cell(text=short or "(no name)", full="" if short == name else name, note=note)


def left_alone(num_files: int) -> str:
    """Return what became of the files that scripts would have written."""
    were = "was" if num_files == 1 else "were"
    return f"{units.count(num_files, 'file')} that the script would have written or removed {were} left alone"
