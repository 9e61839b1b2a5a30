"""Modes that are gated together: each is judged by its own pairs, and a false alarm about any is one of the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpdoctor.gate.model import ModeNoise
from dpdoctor.gate.statistics.decide import Verdict, decide
from dpdoctor.gate.statistics.design import Plan


def judge(
    log_ratios: Mapping[str, Sequence[float]],
    settled: Mapping[str, Verdict],
    *,
    plan: Plan,
    noise: Mapping[str, ModeNoise],
    asked: float,
) -> dict[str, Verdict]:
    """Return the verdict on every mode, given the log ratios of its pairs so far: ln(head / base), in their order.

    `settled` are the verdicts of the call before (empty at first): those that were final stay as they are. A mode
    that fails makes room for the others, which are then judged once more; see `holm_alpha`.

    Raises:
        ValueError: as `decide`.
    """
    kept = {mode: verdict for mode, verdict in settled.items() if verdict.final}
    num_failed = sum(verdict.outcome == "regressed" for verdict in kept.values())
    found = {
        mode: decide(
            ratios, plan=plan, noise=noise[mode], asked=asked, num_modes=len(log_ratios), num_failed=num_failed
        )
        for mode, ratios in log_ratios.items()
        if mode not in kept
    }
    failed = {mode: verdict for mode, verdict in found.items() if verdict.outcome == "regressed"}
    if failed:
        return judge(log_ratios, {**kept, **failed}, plan=plan, noise=noise, asked=asked)
    return {mode: kept.get(mode) or found[mode] for mode in log_ratios}
