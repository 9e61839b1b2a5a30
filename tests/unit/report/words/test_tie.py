from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.report.text import capital, sentence
from dpdoctor.report.words import clauses, verdict
from tests.builders import runs
from tests.builders.figures import figures

RULE = "Modes are measurably different where the 95% interval of the ratio of their throughputs leaves out 1. "


def figure(value: float, half: float | None, unit: str, scope: str = "run") -> Figure:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Figure(value=value, low=low, high=high, n=5, unit=unit, scope=scope)


def mode(
    rate: float, factor: float | None, half: float | None = 0.05, *, forward_ms: int = 40, scope: str = "run"
) -> ModeSummary:
    """Return DDP on two ranks at `rate` samples/s; figures give or take `half` of their value."""

    def ranged(value: float, unit: str) -> Figure:
        return figure(value, None if half is None else half * value, unit, scope)

    phases_ms = (2, 1, forward_ms, 50, 5, 2)
    found = runs.gpu_run().summary.modes["ddp"]
    return replace(
        found,
        throughput=ranged(rate, "samples/s"),
        speedup=Figure(value=None, unit="x", reason="no baseline") if factor is None else ranged(factor, "x"),
        scaling_efficiency=Figure(value=None, unit="ratio", reason="no baseline")
        if factor is None
        else ranged(factor / 2, "ratio"),
        phases=dict(zip(found.phases, (figure(ms / 1000, None, "s") for ms in phases_ms), strict=True)),
    )


def headline(**modes: ModeSummary) -> tuple[str, str, str]:
    said = verdict.headline(replace(runs.gpu_run().summary, modes=modes))
    return said.tone, said.sentence, said.detail


def time(*modes: ModeSummary) -> str:
    """Return where the steps of the modes, which spend them alike, go."""
    (words,) = clauses.step_time(modes)
    return sentence(capital(words))


@pytest.mark.parametrize(
    ("factors", "tone", "against_one"),
    [
        ((1.5, 1.6), "good", "1.50x and 1.60x of one device (75% and 80% of linear)"),
        ((0.5, 0.6), "bad", "both are slower than one device: 0.500x and 0.600x (25% and 30% of linear)"),
        ((0.98, 1.03), "warn", "neither differs measurably from one device: 0.980x and 1.03x"),
        (
            (1.02, 1.1),
            "warn",
            "1.02x and 1.10x of one device (51% and 55% of linear), a measurable difference only for fsdp",
        ),
    ],
)
def test_two_modes_in_one_sentence(factors: tuple[float, float], tone: str, against_one: str) -> None:
    said = headline(ddp=mode(2372, factors[0]), fsdp=mode(2414, factors[1]))
    assert said[:2] == (
        tone,
        f"ddp and fsdp on 2 ranks are not measurably different: 2,372 and 2,414 samples/s; {against_one}.",
    )


def test_the_detail_gives_the_rule_the_quotient_and_what_it_rests_on() -> None:
    ddp, fsdp = mode(2372, 1.5), mode(2414, 1.6)
    *_, detail = headline(ddp=ddp, fsdp=fsdp)
    assert detail == (
        f"{time(ddp, fsdp)} {RULE}fsdp over ddp 1.02x (0.948–1.09), {clauses.rests_on(ddp.speedup)} "
        f"{clauses.scaling_words(ddp)}"
    )


def test_repeated_launches_are_said_to_be() -> None:
    ddp, fsdp = mode(2372, 1.5, scope="launches"), mode(2414, 1.6, scope="launches")
    *_, detail = headline(ddp=ddp, fsdp=fsdp)
    assert clauses.rests_on(ddp.speedup) in detail
    assert figures(detail.partition("fsdp over ddp ")[2]) == ["1.02x", "0.948", "1.09", "5"]
    assert "5 launches" in detail


def test_modes_without_intervals_are_not_called_alike() -> None:
    ddp, fsdp = mode(100, 1.5, None), mode(300, 4.5, None)
    tone, sentence, detail = headline(ddp=ddp, fsdp=fsdp)
    assert tone == "plain"
    assert sentence.startswith("ddp and fsdp on 2 ranks cannot be told apart by so few windows: 100 and 300 samples/s;")
    assert "a measurable difference for none of them" in sentence
    assert detail == f"{time(ddp, fsdp)} {RULE}{clauses.scaling_words(ddp)}"


def test_without_a_baseline_the_modes_are_told_from_each_other_only() -> None:
    _, sentence, _ = headline(ddp=mode(2372, None), fsdp=mode(2414, None))
    assert sentence.startswith("ddp and fsdp on 2 ranks")
    assert figures(sentence) == ["2", "2,372", "2,414 samples/s"]
    assert sentence.endswith(" samples/s.")


def test_three_modes_on_unlike_devices_that_spend_their_steps_unlike() -> None:
    one_process = replace(mode(2400, 1.0), world_size=1)
    _, sentence, detail = headline(dp=one_process, ddp=mode(2372, 1.0, forward_ms=60), fsdp=mode(2414, 1.0))
    assert sentence == (
        "dp on 2 devices, ddp on 2 ranks and fsdp on 2 ranks are not measurably different: "
        "2,400, 2,372 and 2,414 samples/s; none differs measurably from one device: 1.00x, 1.00x and 1.00x."
    )
    assert detail.startswith(RULE)
