"""The headline: the answer in words, which page and terminal both take from here, so they cannot disagree.

Where one mode leads it is the result of that mode; where several do, that they are not told apart. It ends with what to
change first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeSummary, RunSummary
from dpdoctor.analysis.analyse import EDGES_ARE_STEADY, together
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.analysis.controls import MOST_SHARE, has_unwatched_rate, is_too_much, is_unclear
from dpdoctor.report.blocks import Headline
from dpdoctor.report.text import (
    by_reason,
    capital,
    clipped,
    figure_text,
    interval_text,
    listed,
    listed_figures,
    mode_label,
    sentence,
    with_interval,
)
from dpdoctor.report.words import diagnosis, standing
from dpdoctor.report.words.step_parts import step_time

# Files that a sentence names; run.json has all.
MOST_NAMED = 10
WAY_OUT = "--allow-writes lets it write"
# A rate that, with what happens between steady steps, is less than so much of itself is not what an epoch has.
LEAST_STEADY = 0.95
# A name from the script may be of any length.
LONGEST_TITLE, LONGEST_REMEDY = 120, 80
# How a mode stands to one device is the first clause of every headline.
SAID = frozenset({"parallelism_not_worth_it"})


def headline(summary: RunSummary) -> Headline:
    """Return the run's answer in one sentence; a mode leads alone only where the measurement supports it."""
    leading = standing.leaders(summary)
    change = advice(summary, leading)
    last = [change] if change else []
    if len(leading) > 1:
        return _tie(leading, last)
    for name, mode in leading.items():
        return mode_verdict(name, mode, bottleneck(summary, name), last)
    steps = list(_steps(summary))
    if steps:
        return Headline(tone="plain", sentence=sentence(f"Samples per second are unknown; {listed(steps)}"))
    if not summary.modes:
        return Headline(tone="bad", sentence="This run has no modes: nothing was measured.")
    if all(mode.status == "ok" for mode in summary.modes.values()):
        return Headline(tone="plain", sentence="The script was wrapped in every mode; nothing was measured.")
    return Headline(tone="bad", sentence="No mode could be measured.")


def _steps(summary: RunSummary) -> Iterator[str]:
    """Yield how fast the steps of each mode are of which a step was measured."""
    for name, mode in summary.modes.items():
        if mode.step.value and why_withheld(mode) is None:
            per_second = units.digits(1 / mode.step.value)
            yield f"{mode_label(name)} takes {figure_text(mode.step)} per step ({per_second} steps/s)"


def mode_verdict(
    name: str,
    mode: ModeSummary,
    cost: str | None = None,
    last: Sequence[str] = (),
    alike: Mapping[str, ModeSummary] | None = None,
) -> Headline:
    """Return one mode's result in one sentence, which names all that failed `alike`.

    Where the mode was measured that has the clause of what costs most (None: where a step's time goes) and ends with
    the `last` ones.
    """
    label, rate = mode_label(name), figure_text(mode.throughput)
    alike = alike or {name: mode}
    withheld = standing.why_badly(alike)
    if withheld is not None:
        every = [mode_label(one) for one in alike]
        skipped = ("muted", "was skipped" if len(every) == 1 else "were skipped")
        tone, word = skipped if mode.status == "skipped" else ("bad", "failed")
        return Headline(tone=tone, sentence=sentence(f"{listed(every)} {word}: {withheld}"))
    reason = mode.reason or "no reason was recorded"
    if mode.status == "inactive":
        trains = "" if mode.throughput.value is None else f" ({rate})"
        return Headline(tone="muted", sentence=sentence(f"{label} is not available{trains}: {reason}"))
    if mode.throughput.value is None:
        return Headline(tone="warn", sentence=sentence(f"{label} was not measured: {mode.throughput.reason}"))
    parts = [_speed(name, mode), *([cost] if cost else step_time([mode]))]
    if mode.status != "ok":
        parts.append(f"it was {mode.status}: {reason}")
    elif standing.has_failed_later(mode):
        parts.append(reason)
    parts += last
    return Headline(tone=_tone(mode), sentence=sentence("; ".join(parts)), detail=_detail(mode))


def _speed(name: str, mode: ModeSummary) -> str:
    where = mode_label(name) if standing.is_baseline(name) else f"{mode_label(name)} on {standing.devices(mode)}"
    stands, factor = standing.against_one(mode.speedup), figure_text(mode.speedup)
    if stands == "unknown":
        return f"{where} trains {figure_text(mode.throughput)}"
    if stands == "alike":
        linear = standing.linear(mode)
        reached = "" if linear is None or linear.value is None else f", {figure_text(linear)} of linear"
        interval = with_interval(mode.speedup)
        return f"{where} is not measurably faster or slower than one device: {interval}{reached}"
    of_linear = standing.of_linear([mode])
    if stands == "slower":
        return f"{where} is slower than one device: {factor}{of_linear}"
    reserve = ", from too few windows for an interval" if stands == "unclear" else ""
    return f"{where} gives {factor} of one device{of_linear}{reserve}"


def _tone(mode: ModeSummary) -> str:
    return (
        "warn"
        if mode.status != "ok" or standing.has_failed_later(mode)
        else standing.TONES[standing.against_one(mode.speedup)]
    )


def _detail(mode: ModeSummary) -> str:
    """Return what a speedup is to be held against: loader processes alone, its interval, and what was kept equal."""
    if mode.speedup.value is None:
        return ""
    control, interval = standing.loader_control(mode), interval_text(mode.speedup)
    loaders = sentence(capital(control)) if control else ""
    spread = f"95% interval {interval}, {standing.rests_on(mode.speedup)}" if interval else ""
    return " ".join(part for part in (spread, loaders, standing.scaling_words(mode)) if part)


def _tie(modes: Mapping[str, ModeSummary], last: Sequence[str] = ()) -> Headline:
    """Return in one sentence that two or more modes cannot be told apart, and how they stand to one device.

    The sentence ends with the `last` clauses.
    """
    fastest = max(modes, key=lambda name: modes[name].throughput.value or 0.0)
    others = {name: standing.quotient(modes[fastest], mode) for name, mode in modes.items() if name != fastest}
    unlike = any(figure.value is None for figure in others.values())
    unclear = any(figure.low is None for figure in others.values())
    by = "" if unlike else " by so few windows"
    alike = f"cannot be told apart{by}" if unclear else "are not measurably different"
    rates = listed_figures([mode.throughput for mode in modes.values()])
    standings = {standing.against_one(mode.speedup) for mode in modes.values()}
    parts = (f"{_who(modes)} {alike}: {rates}", *_against_one(modes, standings), *last)
    tone = standing.TONES[standings.pop()] if len(standings) == 1 else "warn"
    return Headline(tone=tone, sentence=sentence("; ".join(parts)), detail=_tie_detail(modes, fastest, others))


def _who(modes: Mapping[str, ModeSummary]) -> str:
    places = {name: standing.devices(mode) for name, mode in modes.items()}
    if len(set(places.values())) == 1:
        return f"{listed([mode_label(name) for name in modes])} on {next(iter(places.values()))}"
    return listed([f"{mode_label(name)} on {place}" for name, place in places.items()])


def _against_one(modes: Mapping[str, ModeSummary], standings: set[str]) -> Iterator[str]:
    """Yield how they stand to one device; nothing without a baseline."""
    if "unknown" in standings:
        return
    factors = listed_figures([mode.speedup for mode in modes.values()])
    of_linear = standing.of_linear([*modes.values()])
    both, neither = ("both", "neither") if len(modes) == 2 else ("all", "none")
    if standings == {"slower"}:
        yield f"{both} are slower than one device: {factors}{of_linear}"
    elif standings == {"alike"}:
        yield f"{neither} differs measurably from one device: {factors}"
    elif standings == {"faster"}:
        yield f"{factors} of one device{of_linear}"
    else:
        apart = [mode_label(n) for n, m in modes.items() if standing.against_one(m.speedup) in ("faster", "slower")]
        clear = f"only for {listed(apart)}" if apart else "for none of them"
        yield f"{factors} of one device{of_linear}, a measurable difference {clear}"


def _tie_detail(modes: Mapping[str, ModeSummary], fastest: str, others: Mapping[str, Figure]) -> str:
    """Return where the steps' time goes, the rule of the tie, the quotients it was put to and what they rest on."""
    time = [sentence(text[0].upper() + text[1:]) for text in step_time([*modes.values()])]
    rule = "Modes are measurably different where the 95% interval of the ratio of their throughputs leaves out 1."
    known = {name: figure for name, figure in others.items() if figure.low is not None}
    ratios = [f"{mode_label(name)} {with_interval(f)}" for name, f in known.items()]
    parts = [f"{mode_label(fastest)} over {listed(ratios)}, {standing.rests_on(f)}" for f in [*known.values()][:1]]
    controls = [
        sentence(f"{mode_label(name)}: {control}")
        for name, mode in modes.items()
        if (control := standing.loader_control(mode))
    ]
    scaling = {standing.scaling_words(mode) for mode in modes.values()}
    return " ".join((*time, *controls, rule, *parts, *sorted(scaling)))


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy in a few words, and what it gives in one mode; `basis` is Finding.speedup_basis."""

    mode: str
    rule: str
    short: str
    basis: str
    gain: Figure


def bottleneck(summary: RunSummary, mode: str) -> str | None:
    """Return the costliest bottleneck of a mode, but for what a headline begins with, in a clause; None: no other."""
    costly = (finding for finding in diagnosis.parts(summary).costly if finding.mode == mode)
    first = next((finding for finding in costly if finding.rule not in SAID), None)
    return None if first is None else clipped(first.title, LONGEST_TITLE)


def advice(summary: RunSummary, modes: Collection[str]) -> str | None:
    """Return what to change about the costliest bottleneck of these modes, and what that is predicted to give.

    None where both are not known in few words: of another bottleneck it would be taken for this one's. Modes that
    share bottleneck and remedy are told of together.
    """
    worst = _costliest(summary, modes)
    found = [change for change in _changes(summary, modes) if worst is not None and change.rule == worst.rule]
    if not found:
        return None
    first = found[0]
    same = {change.mode: change for change in found if _words(change) == _words(first)}
    where = "" if len(same) == len(modes) else f"for {listed([mode_label(mode) for mode in same])} "
    gains = [same[mode].gain for mode in modes if mode in same]
    is_bounded = all(gain.value is not None for gain in gains)
    given = f"{first.basis} {listed_figures(gains)} of today's throughput" if is_bounded else diagnosis.NO_BOUND
    # What was tried and does not help comes after what does.
    change, _, tried = first.short.partition("; ")
    also = f" ({clipped(tried, LONGEST_REMEDY)})" if tried else ""
    return f"{where}{clipped(change, LONGEST_REMEDY)}: {given}{also}"


def _words(change: _Change) -> tuple[str, str, str]:
    return change.rule, change.short, change.basis


def _costliest(summary: RunSummary, modes: Collection[str]) -> Finding | None:
    return next((finding for finding in diagnosis.parts(summary).costly if finding.mode in modes), None)


def _changes(summary: RunSummary, modes: Collection[str]) -> Iterator[_Change]:
    """Yield the changes that are predicted to give more than noise, that of the costliest finding first."""
    for finding in diagnosis.parts(summary).costly:
        speedup, gain = finding.speedup, finding.gain
        if finding.mode not in modes or not finding.short_remedy or speedup is None or gain is None:
            continue
        if _least(speedup) > 1:
            yield _Change(
                mode=finding.mode,
                rule=finding.rule,
                short=finding.short_remedy,
                basis=finding.speedup_basis,
                gain=gain,
            )


def _least(gain: Figure) -> float:
    """Return the least that a gain may be; 0 where it is unknown."""
    return (gain.value if gain.low is None else gain.low) or 0.0


def limits(summary: RunSummary) -> Iterator[str]:
    """Yield in a sentence each what is missing or unsure: modes that were not measured, or not traced; the pace."""
    missing = standing.without_throughput(summary).items()
    for reason, labels in by_reason((mode_label(name), reason) for name, reason in missing).items():
        yield sentence(f"No throughput of {labels}: {reason}")
    untraced = {name: mode.trace_reason for name, mode in standing.shown_modes(summary).items() if mode.trace_reason}
    for reason, labels in by_reason((mode_label(name), reason) for name, reason in untraced.items()).items():
        yield sentence(f"No trace of {labels}: {reason}")
    for name, mode in standing.shown_modes(summary).items():
        if (standing.is_baseline(name) or mode.native is not None) and mode.throughput.value is not None:
            yield from _own_cost(name, mode)
        if mode.raised:
            yield sentence(
                f"{mode_label(name)} was launched again, without the ablations with which it failed ({mode.raised}); "
                "both launches are kept"
            )
    less = {
        name: mode.throughput_all_steps
        for name, mode in standing.shown_modes(summary).items()
        if _is_less_with_edges(mode)
    }
    of_epochs = [f"{figure_text(rate)} ({mode_label(name)})" for name, rate in less.items() if rate.reason is None]
    if of_epochs:
        yield sentence(f"Rates are of steady steps; with epoch starts and evaluations: {listed(of_epochs)}")
    # Windows hold as many of those as chance will have it.
    of_windows = [mode_label(name) for name, rate in less.items() if rate.reason is not None]
    if of_windows:
        yield sentence(f"Rates are of steady steps; epoch starts and evaluations are left out: {listed(of_windows)}")
    whole = [mode_label(name) for name, mode in standing.shown_modes(summary).items() if _is_taken_whole(mode)]
    if whole:
        yield sentence(f"{capital(listed(whole))}: {EDGES_ARE_STEADY}")
    yield from _files(summary)
    if summary.caveat:
        yield sentence(capital(summary.caveat))


def _is_taken_whole(mode: ModeSummary) -> bool:
    return mode.conversion is not None and EDGES_ARE_STEADY in mode.conversion.warnings


def _is_less_with_edges(mode: ModeSummary) -> bool:
    """Return whether a mode's rate is much less with what happens between steady steps."""
    steady, of_all = mode.throughput.value, mode.throughput_all_steps.value
    return mode.status == "ok" and steady is not None and of_all is not None and of_all < LEAST_STEADY * steady


def _files(summary: RunSummary) -> Iterator[str]:
    """Yield what became of the user's files in spite of all, what the script was refused, and what a wall broke."""
    changes = together(file for mode in summary.modes.values() for file in mode.files_changed)
    if changes:
        named = [f"{file.path} ({file.change})" for file in changes]
        more = f" and {units.count(len(named) - MOST_NAMED, 'more file')}" if len(named) > MOST_NAMED else ""
        yield sentence(
            f"Files changed beside the script while it ran, by what dpdoctor does not divert or by somebody else: "
            f"{', '.join(named[:MOST_NAMED])}{more}"
        )
    for name, mode in summary.modes.items():
        if mode.again:
            yield sentence(
                f"{mode_label(name)} was launched twice. Behind the overlay that keeps its files in memory it failed "
                f"({mode.again.partition('; ')[0]}); the next wall protects them since, and both launches are kept"
            )
    lines = list(dict.fromkeys(line.strip() for mode in summary.modes.values() for line in mode.files_refused))
    if lines:
        yield sentence(
            f"The script was refused files, as compiled code and programs are: {'; '.join(lines)}. {WAY_OUT}"
        )


def _own_cost(name: str, mode: ModeSummary) -> Iterator[str]:
    """Yield that watching takes, or may take, much of a step, and which figures it is in."""
    share = mode.observer_overhead
    if has_unwatched_rate(mode) or (mode.native is None and is_too_much(share)):
        bare = (
            "one device is that of its bare launches"
            if mode.native is None
            else f"{mode_label(name)} is of unwatched steps"
        )
        yield sentence(
            f"The rate of {bare}; its step and what it consists of were watched, which takes "
            f"{units.share(share.value or 0.0)} of it"
        )
    elif is_unclear(share):
        yield sentence(
            f"Watching the script may take {units.share(share.value or 0.0)} of each step ({interval_text(share)}): "
            "the intervals of rates and speedups hold what it may reach alone"
        )
    if share.value is None or share.value <= MOST_SHARE or share.low is not None:
        return
    if share.reason:
        # What a hook costs is measured with cold caches: in a short step they are warmer.
        most = f"as much as {units.share(share.value)}" if share.value < 1 else "most"
        yield sentence(
            f"The script alone trains faster: watching it may take {most} of each step, by what one hook costs; "
            f"{share.reason}"
        )
    else:
        yield sentence(
            f"The script alone trains faster: watching it takes about {units.share(share.value)} of each step, with no "
            "interval known"
        )
