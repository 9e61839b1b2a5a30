"""How often gates are wrong and right, replayed over the pool of real launches.

    python -m tests.benchmarks.gate_pool.replay > tests/benchmarks/gate_pool/table.md

A gate takes pairs that followed each other, and begins with any of them; gates that begin near each other share most
of their pairs, so their number is not that of independent ones. In pairs of the same script either launch may be
called head, so each block is two gates. Beside the gate's own rule: one run against one run with a threshold of 3%,
and the Mann-Whitney test over the steps of one run against those of the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy import stats

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.gate.calibration import mode_noise
from dpdoctor.gate.decide import by_all_windows, decide
from dpdoctor.gate.design import QUICK, Plan, capability, sequence
from dpdoctor.gate.model import ModeNoise
from dpdoctor.gate.signed_rank import location
from dpdoctor.report.text import with_interval

from . import pool
from .pool import POOLS, Pool, PoolPair

ONE_RUN_THRESHOLD = 0.03
STEPS_ALPHA = 0.05
SAME, BY_10, BY_5 = "same", "slower_10", "slower_5"
MOST_FALSE, LEAST_BY_10, LEAST_BY_5 = 0.01, 0.95, 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How one gate ended, and after how many pairs."""

    outcome: str
    pairs: int


Gate = Callable[[Sequence[PoolPair]], Replayed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to judge: `gate` looks at up to `pairs` pairs."""

    title: str
    pairs: int
    gate: Gate


def rules(noise: ModeNoise) -> list[Rule]:
    """Return what is compared, the gate's own plans first."""
    return [
        paired("paired, 5%", sequence(), noise, 0.05),
        paired("paired, --tolerance 2", sequence(), noise, 0.02),
        paired("paired, 5%, --quick", QUICK, noise, 0.05),
        Rule(title="one run against one run, 3%", pairs=1, gate=one_run),
        Rule(title="Mann-Whitney over 100 steps, p < 0.05", pairs=1, gate=over_steps),
    ]


def paired(title: str, plan: Plan, noise: ModeNoise, asked: float) -> Rule:
    """Return the gate's own rule with a plan and a tolerance."""

    def gate(pairs: Sequence[PoolPair]) -> Replayed:
        ratios = [log_ratio(pair) for pair in pairs]
        # A gate that cannot judge on this machine says so before the first pair.
        numbers = (0, *(look.pairs for look in plan.looks))
        looks = (decide(ratios[:number], plan=plan, noise=noise, asked=asked) for number in numbers)
        decided = next(one for one in looks if one.final)
        verdict = by_all_windows(decided, [pair.for_gate() for pair in pairs], plan=plan, noise=noise)
        return Replayed(outcome=verdict.outcome, pairs=verdict.effect.n)

    return Rule(title=title, pairs=plan.last.pairs, gate=gate)


def one_run(pairs: Sequence[PoolPair]) -> Replayed:
    """Judge by one run of each side and a threshold."""
    (pair,) = pairs
    return _judged(pair.head.step_s > (1 + ONE_RUN_THRESHOLD) * pair.base.step_s)


def over_steps(pairs: Sequence[PoolPair]) -> Replayed:
    """Judge by a test that takes the steps of one run for independent."""
    (pair,) = pairs
    return _judged(stats.mannwhitneyu(pair.head.steps, pair.base.steps, alternative="greater").pvalue < STEPS_ALPHA)


def _judged(is_slower: bool) -> Replayed:
    return Replayed(outcome="regressed" if is_slower else "pass", pairs=1)


def log_ratio(pair: PoolPair) -> float:
    """Return ln(head / base) of a pair."""
    return float(np.log(pair.head.step_s / pair.base.step_s))


def turned(pair: PoolPair) -> PoolPair:
    """Return a pair whose launches have changed their names."""
    first, second = (
        pool.renamed(launched, "base" if launched.side == "head" else "head") for launched in (pair.first, pair.second)
    )
    return PoolPair(first=first, second=second)


def replayed(rule: Rule, found: Pool, kind: str) -> list[Replayed]:
    """Return how the gates of one kind end."""
    blocks = found.blocks(kind, rule.pairs)
    if kind == SAME:
        blocks += [[turned(pair) for pair in block] for block in blocks]
    return [rule.gate(block) for block in blocks]


def share(gates: Sequence[Replayed], outcome: str) -> float:
    """Return the share of gates that ended so; NaN where there was none."""
    return fmean(gate.outcome == outcome for gate in gates) if gates else float("nan")


def table(found: Pool, compared: Sequence[Rule]) -> list[str]:
    """Return the Markdown table: one line per rule."""
    lines = [
        "| rule | gates of the same | failed | passed | mean pairs | 10% slower: failed | passed | mean pairs "
        "| 5% slower: failed | passed | mean pairs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rule in compared:
        by_kind = [replayed(rule, found, kind) for kind in (SAME, BY_10, BY_5)]
        cells = [cell for gates in by_kind for cell in _cells(gates)]
        lines.append(f"| {rule.title} | {units.whole(len(by_kind[0]))} | {' | '.join(cells)} |")
    return lines


def _cells(gates: Sequence[Replayed]) -> list[str]:
    if not gates:
        return ["too few pairs"] * 3
    return [
        units.share(share(gates, "regressed")),
        units.share(share(gates, "pass")),
        units.digits(fmean(gate.pairs for gate in gates)),
    ]


def targets(found: Pool, compared: Sequence[Rule]) -> list[str]:
    """Return what must hold, and whether it does."""
    usual, narrow = compared[0], compared[1]
    return [
        _target("false alarms", share(replayed(usual, found, SAME), "regressed"), most=MOST_FALSE),
        _target("false alarms with --tolerance 2", share(replayed(narrow, found, SAME), "regressed"), most=MOST_FALSE),
        _target("10% slower is caught", share(replayed(usual, found, BY_10), "regressed"), least=LEAST_BY_10),
        _target(
            "5% slower is caught by --tolerance 2", share(replayed(narrow, found, BY_5), "regressed"), least=LEAST_BY_5
        ),
    ]


def _target(what: str, found: float, *, least: float = 0.0, most: float = 1.0) -> str:
    bound = f"at least {units.share(least)}" if least else f"at most {units.share(most)}"
    if np.isnan(found):
        return f"- {what}: too few pairs"
    return f"- {what}: {units.share(found)}; {bound}: {'as it must be' if least <= found <= most else 'NOT MET'}"


def noise_of(found: Pool) -> ModeNoise:
    """Return what the pairs of the calibration say, as `dpdoctor calibrate` would."""
    return mode_noise([pair.for_gate() for pair in found.of("calibration")])


def machine(found: Pool, noise: ModeNoise) -> list[str]:
    """Return what was launched, how noisy it is, and what that allows to find."""
    origin = found.origin
    of_20 = {asked: capability(sequence(), noise.pair_sd, asked) for asked in (0.05, 0.02)}
    return [
        f"{' '.join(origin.command)}, {units.seconds(origin.step_s)} per step, on {origin.cpu or 'an unknown CPU'} "
        f"({units.count(origin.cores, 'core')}), torch {origin.torch}, Python {origin.python}; {origin.created}.",
        "",
        f"- launches differ by {units.share(noise.run_cv)}, pairs by {units.share(noise.pair_sd)}, by all windows by "
        f"{units.share(noise.shown_pair_sd or 0.0)}; one launch and the "
        f"next correlate by {units.digits(noise.autocorrelation, 2)} ({len(noise.log_ratios)} A/A pairs)",
        *(
            f"- allowing {units.share(asked)}, a gate finds {units.share(can.mde)} with a probability of 80%"
            for asked, can in of_20.items()
        ),
        *(f"- {kind}: head is slower by {with_interval(_slowdown(found, kind))}" for kind in (SAME, BY_10, BY_5)),
    ]


def _slowdown(found: Pool, kind: str) -> Figure:
    """Return by how much head is slower by all pairs of a kind, with a 95% interval."""
    ratios = np.array([log_ratio(pair) for pair in found.of(kind)])
    if not len(ratios):
        return Figure(value=None, unit="ratio", reason="no pair")
    at = location(ratios, low_alpha=0.025, high_alpha=0.025)
    value, low, high = (float(np.expm1(one)) for one in (at.value, at.low, at.high))
    return Figure(value=value, low=low, high=high, n=len(ratios), unit="ratio", scope="launches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, nargs="+", default=POOLS)
    print("\n\n".join(section(path) for path in parser.parse_args().pool))


def section(path: Path) -> str:
    """Return what is said of a pool."""
    found = pool.read(path)
    noise = noise_of(found)
    compared = rules(noise)
    return "\n".join(
        [f"## {path.name}", "", *machine(found, noise), "", *table(found, compared), "", *targets(found, compared)]
    )


if __name__ == "__main__":
    main()
