"""The headline where the measurement supports no order among the leading modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.report.blocks import Headline
from dpdoctor.report.text import listed, listed_figures, mode_label, sentence, with_interval
from dpdoctor.report.words import clauses
from dpdoctor.report.words.standing import quotient


def tie_verdict(modes: Mapping[str, ModeSummary], last: Sequence[str] = ()) -> Headline:
    """Return in one sentence that two or more modes cannot be told apart, and how they stand to one device.

    The sentence ends with the `last` clauses.
    """
    fastest = max(modes, key=lambda name: modes[name].throughput.value or 0.0)
    others = {name: quotient(modes[fastest], mode) for name, mode in modes.items() if name != fastest}
    unlike = any(figure.value is None for figure in others.values())
    unclear = any(figure.low is None for figure in others.values())
    by = "" if unlike else " by so few windows"
    alike = f"cannot be told apart{by}" if unclear else "are not measurably different"
    rates = listed_figures([mode.throughput for mode in modes.values()])
    standings = {clauses.against_one(mode.speedup) for mode in modes.values()}
    parts = (f"{_who(modes)} {alike}: {rates}", *_against_one(modes, standings), *last)
    tone = clauses.TONES[standings.pop()] if len(standings) == 1 else "warn"
    return Headline(tone=tone, sentence=sentence("; ".join(parts)), detail=_detail(modes, fastest, others))


def _who(modes: Mapping[str, ModeSummary]) -> str:
    places = {name: clauses.devices(mode) for name, mode in modes.items()}
    if len(set(places.values())) == 1:
        return f"{listed([mode_label(name) for name in modes])} on {next(iter(places.values()))}"
    return listed([f"{mode_label(name)} on {place}" for name, place in places.items()])


def _against_one(modes: Mapping[str, ModeSummary], standings: set[str]) -> Iterator[str]:
    """Yield how they stand to one device; nothing without a baseline."""
    if "unknown" in standings:
        return
    factors = listed_figures([mode.speedup for mode in modes.values()])
    of_linear = clauses.of_linear([*modes.values()])
    both, neither = ("both", "neither") if len(modes) == 2 else ("all", "none")
    if standings == {"slower"}:
        yield f"{both} are slower than one device: {factors}{of_linear}"
    elif standings == {"alike"}:
        yield f"{neither} differs measurably from one device: {factors}"
    elif standings == {"faster"}:
        yield f"{factors} of one device{of_linear}"
    else:
        apart = [mode_label(n) for n, m in modes.items() if clauses.against_one(m.speedup) in ("faster", "slower")]
        clear = f"only for {listed(apart)}" if apart else "for none of them"
        yield f"{factors} of one device{of_linear}, a measurable difference {clear}"


def _detail(modes: Mapping[str, ModeSummary], fastest: str, others: Mapping[str, Figure]) -> str:
    """Return where the steps' time goes, the rule of the tie, the quotients it was put to and what they rest on."""
    time = [sentence(text[0].upper() + text[1:]) for text in clauses.step_time([*modes.values()])]
    rule = "Modes are measurably different where the 95% interval of the ratio of their throughputs leaves out 1."
    known = {name: figure for name, figure in others.items() if figure.low is not None}
    ratios = [f"{mode_label(name)} {with_interval(f)}" for name, f in known.items()]
    parts = [f"{mode_label(fastest)} over {listed(ratios)}, {clauses.rests_on(f)}" for f in [*known.values()][:1]]
    controls = [
        sentence(f"{mode_label(name)}: {control}")
        for name, mode in modes.items()
        if (control := clauses.loader_control(mode))
    ]
    scaling = {clauses.scaling_words(mode) for mode in modes.values()}
    return " ".join((*time, *controls, rule, *parts, *sorted(scaling)))
