"""Results of gates of every kind that a report must be able to show."""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.gate.model import (
    Calibration,
    Difference,
    ExactResult,
    GateResult,
    LeftOut,
    ModeNoise,
    ModeResult,
    Moved,
    Pair,
    Refusal,
    Side,
)
from tests.builders import records
from tests.builders.traced_runs import HOSTILE

FINGERPRINT = records.header({}).fingerprint
HEAD = "/home/me/head"
BASE = Side(label="/home/me/base", command=("dpdoctor", "gate"), fingerprint=FINGERPRINT)
CALIBRATION = Calibration(
    created="2026-01-02T03:04:05Z",
    dpdoctor="0.1.0",
    workload="ab" * 32,
    fingerprint=FINGERPRINT,
    modes={
        "ddp": ModeNoise(
            run_cv=0.01,
            shown_cv=0.012,
            pair_sd=0.01,
            autocorrelation=0.1,
            median_s=0.1,
            log_ratios=(0.0,),
            log_seconds=(0.0, 0.0),
        )
    },
)
PAIR = Pair(base_s=0.0121, head_s=0.0133, order="AB")
THROTTLED = Pair(base_s=0.0121, head_s=None, order="BA", replaced="the GPU was throttled in head")
SYNC = Difference(name="syncs.item", base=1, head=2, change="more", line=f"{HEAD}/src/train.py:41")


def effect(value: float | None = 1.004, half: float = 0.016, **fields: object) -> Figure:
    """Return head's time over base's."""
    if value is None:
        return Figure(value=None, unit="x", reason="no pair of launches counts so far")
    known = Figure(value=value, low=value - half, high=value + half, n=7, unit="x", scope="launches")
    return replace(known, **fields)


def mode(**fields: object) -> ModeResult:
    """Return a mode that passes after seven pairs, one of which was replaced."""
    known = ModeResult(
        outcome="pass",
        reason="the step takes 0.4% longer (-1.2 to 2.0%, 7 pairs), which is surely less than the 5.0% allowed",
        effect=effect(),
        tolerance=0.05,
        asked=0.05,
        alpha=0.01,
        mde=0.031,
        pairs=(*[PAIR] * 7, THROTTLED),
    )
    return replace(known, **fields)


def exact(**fields: object) -> ExactResult:
    """Return counters that are what they were, but for what varies."""
    varies = LeftOut(name="operators", reason="it varies by nature: 700 in base, 703 when base ran again")
    known = ExactResult(outcome="pass", reason="a step does what it did, by 9 counters", compared=9, left_out=(varies,))
    return replace(known, **fields)


def result(**fields: object) -> GateResult:
    """Return a gate that passes in one mode, by time and by counters."""
    known = GateResult(
        dpdoctor="0.1.0",
        kind="paired",
        outcome="pass",
        modes={"ddp": mode()},
        exact={"ddp": exact()},
        refusals=(),
        calibration=CALIBRATION,
        base=BASE,
        head=replace(BASE, label=HEAD),
    )
    return replace(known, **fields)


def passed() -> GateResult:
    """Return that gate."""
    return result()


def regressed() -> GateResult:
    """Return a slower step, with what moved, and a wait more."""
    moved = (
        Moved(kind="phase", name="data_wait", text="", base=_seconds(0.060), head=_seconds(0.070)),
        Moved(kind="finding", name="data_starved", text="appeared: the loader starves training"),
        Moved(kind="counter", name="syncs.item", text="2 instead of 1"),
    )
    slower = mode(
        outcome="regressed",
        reason="the step takes 9.8% longer (8.1–12%, 7 pairs)",
        effect=effect(1.098),
        moved=moved,
    )
    differences = (
        SYNC,
        replace(SYNC, name="operators", base=700, head=702, line=None),
        Difference(name="h2d_bytes", base=1_000, head=500, change="less"),
    )
    more = exact(outcome="regressed", reason="a step does more than it did", differences=differences)
    return result(outcome="regressed", modes={"ddp": slower, "fsdp": mode()}, exact={"ddp": more})


def undecided() -> GateResult:
    """Return a gate that could not tell, on a machine that was not calibrated."""
    open_ = mode(outcome="inconclusive", reason="too close to tell", effect=effect(None), mde=None, pairs=())
    nothing = exact(outcome="inconclusive", reason="no counter could be compared", compared=0)
    return result(outcome="inconclusive", modes={"ddp": open_}, exact={"ddp": nothing}, calibration=None)


def refused() -> GateResult:
    """Return a baseline of another torch and another host."""
    refusals = (
        Refusal(field="torch", base="2.11.0", head="2.15.0", remedy="save the baseline anew with this torch"),
        Refusal(field="calibration", base=None, head=None, remedy="run dpdoctor calibrate"),
        Refusal(field="host", base="a", head=None, remedy="be aware of it", hard=False),
    )
    return result(
        kind="baseline", outcome="refused", modes={}, exact={}, refusals=refusals, remarks=("cores were taken",)
    )


def counters_only() -> GateResult:
    """Return a gate by counters alone."""
    return result(kind="exact", modes={}, calibration=None)


def one_bound() -> GateResult:
    """Return a gate of which the lower bound is not known."""
    return result(modes={"ddp": mode(effect=effect(low=None))})


def hostile() -> GateResult:
    """Return a gate in which every text tries to break out of where it is shown."""
    text = f"{HOSTILE[0]}\n::error::x%0A@team #1 https://evil.example {HOSTILE[4]}]]> \ufffe\ud800|`$x$"
    bad = mode(
        outcome="regressed",
        reason=text,
        moved=(Moved(kind="finding", name=text, text=text), Moved(kind="counter", name=text, text=text)),
        pairs=(replace(THROTTLED, replaced=text),),
    )
    line = f"{HEAD}/a,b:c%\n::warning::y.py:3"
    more = exact(
        outcome="regressed",
        reason=text,
        differences=(Difference(name=text, base=text, head=text, change="more", line=line),),
        left_out=(LeftOut(name=text, reason=text),),
    )
    refusals = tuple(Refusal(field=text, base=text, head=text, remedy=text, hard=hard) for hard in (True, False))
    side = Side(label=text, command=(text,), fingerprint=None)
    return result(
        outcome="regressed", modes={text: bad}, exact={text: more}, refusals=refusals, base=side, remarks=(text,)
    )


def many() -> GateResult:
    """Return more than any output has room for."""
    long = "word " * 500
    differences = tuple(
        replace(SYNC, name=f"syncs.call{number}", line=f"{HEAD}/a.py:{number}") for number in range(400)
    )
    bad = exact(outcome="regressed", reason=long, differences=differences)
    return result(outcome="regressed", modes={f"mode{n}": mode(reason=long) for n in range(60)}, exact={"ddp": bad})


EVERY = (passed, regressed, undecided, refused, counters_only, one_bound, hostile, many)


def _seconds(value: float) -> Figure:
    return Figure(value=value, low=value - 0.001, high=value + 0.001, n=9, unit="s")
