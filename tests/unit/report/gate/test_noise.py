from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console, RenderableType

from dpdoctor.gate.alternate import Alternated
from dpdoctor.gate.calibration import Enough
from dpdoctor.gate.model import Calibration, ModeNoise, Refusal
from dpdoctor.report.gate import noise
from tests.builders import records

QUIET = ModeNoise(
    run_cv=0.006,
    shown_cv=0.006,
    pair_sd=0.008,
    autocorrelation=-0.12,
    median_s=0.0123,
    log_ratios=(0.008, -0.004, 0.012, -0.008, 0.001) * 2,
    log_seconds=(-4.4,) * 20,
)
CALIBRATION = Calibration(
    created="2026-01-02T03:04:05Z",
    dpdoctor="0.1.0",
    workload="train.py [bold]--epochs 2 on 2 devices",
    fingerprint=records.header({}).fingerprint,
    modes={"ddp": QUIET, "fsdp": replace(QUIET, run_cv=0.03, pair_sd=0.04)},
)


def shown(renderable: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_noise_and_what_it_lets_a_gate_find() -> None:
    text = shown(noise.render(CALIBRATION, 0.05))
    assert "train.py [bold]--epochs 2" in text
    ddp, fsdp = ([line.split() for line in text.splitlines() if line.startswith(name)] for name in ("ddp", "fsdp"))
    assert ddp[0][1:] == ["12.3", "ms", "0.6%", "0.8%", "-0.120"]
    found = [float(value.rstrip("%")) for value in ddp[1][1:]]
    assert len(found) == 5
    # The more pairs, the less is missed; but never less than what is allowed.
    assert found == sorted(found, reverse=True)
    assert found[-1] >= 5
    assert fsdp[1][1:3] == ["too", "noisy"]
    assert "10 pairs" in " ".join(text.split())


def test_why_nothing_was_learned() -> None:
    one = Refusal(field="ddp: mode", base="not concerned", head="it raised", remedy="Mend it")
    both = Refusal(field="disturbed launches", base="2", head="2", remedy="Run again")
    verdicts = {"ddp": Enough(final=False)}
    refused = Alternated(pairs={}, verdicts=verdicts, refusals=(one, both))
    assert shown(noise.not_calibrated(refused)).splitlines() == [
        "Not calibrated:",
        "  ddp: mode: it raised. Mend it.",
        "  disturbed launches: 2 in base, 2 in head. Run again.",
    ]
    interrupted = Alternated(pairs={}, verdicts=verdicts, interrupted=True)
    assert "interrupted" in shown(noise.not_calibrated(interrupted))
