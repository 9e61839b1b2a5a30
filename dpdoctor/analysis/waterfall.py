"""Where the throughput that N devices ought to give is lost: the algebra of the waterfall.

All in seconds per step of one device. S is the step of one device, M the mode's. g and t are the gain and the step of
an ablation: D without waiting for data, C without communication, DC without both. k is 1 where each device takes whole
batches of the script (weak scaling) and 1/N where it takes a part (strong). Then

    ideal             k S
    loader_processes  k (control - S)                 one device with as many loader processes as all ranks have; 0
                                                      where they have none
    data_loading      g_D(mode) - k g_D(single) - loader_processes
    transfer          g_C(mode) - R
    slower_ranks      P + R
    slower_compute    t_DC(mode) - P - k t_D(single)
    other             M - ideal - all of the above

Waiting for data in one device's step is part of the ideal: only what the mode waits beyond that is `data_loading`. The
control is held against it as well: the ideal with more loader processes would wait less, so what the mode gets from
them stands in `loader_processes` and what it does not get in `data_loading`; their sum is what the wait changed by,
whatever the control.

Waiting for peers is in two places. P, by how much the slowest rank is slower than the median of the others when neither
loader nor network disturbs it: it stays when the communication goes, so it is in t_DC. R, what that slowest rank still
waits for the others, now this one and now that: it goes with the communication, so it is in g_C. Imbalance of the
ranks' loaders is neither: removing the wait for data removes it, so it is in `data_loading`.

`overhead` is what the mode's own machinery costs without communication. Removing DDP's communication removes its hooks
and bucket copies, too: N copies are left that compute on the same machine and know nothing of each other. So DDP's
ceiling is slower_compute alone, and what FSDP's ceiling has beyond it, in the same run, is FSDP's overhead:

    slower_compute    t_DC(ddp) - P(ddp) - k t_D(single)
    overhead          (t_DC(fsdp) - P(fsdp)) - (t_DC(ddp) - P(ddp))

nn.DataParallel is one process: it has no communication to remove, and M - g_D(mode) - k t_D(single) is all overhead.

Gains do not add up: what is hidden behind something else gains nothing alone. `other` says how far they are from it,
and holds the terms that are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.ablation import imbalance
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import WATERFALL_TERMS, ModeSummary, Waterfall, why_unlike_steps
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.communication import exposed_share
from dpdoctor.analysis.cross_rank.model import CrossRank
from dpdoctor.spec import BASELINE, BATCH_RULES

NO_DATA, NO_COMM, CEILING = "cached_batches", "no_comm", "no_data_no_comm"
# The mode that without communication is nothing but copies side by side.
COPIES = "ddp"
NO_ABLATIONS = "no ablation was measured that tells where the time goes; --ablations all runs them"
ONE_PROCESS = "one process drives all devices; what that costs is in overhead"
OTHER_BATCHES = "a rank takes neither the batch of one alone nor its part of it"
NO_MORE = "the mode has no more loader processes than one device"
IN_OTHER = "unknown, so it is in other"

# A term and where it comes from.
Term = tuple[Figure, str]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One mode with what its windows and traces say of its ranks.

    Attributes:
        imbalance: P, seconds per step.
        rotating: R, seconds per step.
    """

    mode: ModeSummary
    imbalance: Figure
    rotating: Figure

    @property
    def alone(self) -> Figure:
        """A step of the typical rank without waiting for data or others: t_DC - P."""
        return stats.combination([(1, _step(self.mode, CEILING)), (-1, self.imbalance)], "s")


def waterfalls(
    modes: Mapping[str, ModeSummary],
    launches: Mapping[str, Sequence[LaunchFacts]],
    cross_rank: Mapping[str, CrossRank],
    traces: Mapping[str, Traces],
) -> dict[str, ModeSummary]:
    """Return the modes with their waterfalls from the baseline; launches, ranks compared and traces by mode."""
    sides = {name: _side(mode, launches[name], cross_rank.get(name), traces[name]) for name, mode in modes.items()}
    return {name: with_waterfall(found, modes.get(BASELINE), sides.get(COPIES)) for name, found in sides.items()}


def told_apart(fall: Waterfall) -> dict[str, Figure]:
    """Return the terms as they were measured: waiting for data whole, in the place of its two simulated parts.

    What the control is simulated to give back is in both of them, with opposite signs: their sum is what the wait
    changed by, and knows nothing of the control's interval.
    """
    loader, rest = fall.terms["loader_processes"], fall.terms["data_loading"]
    terms = {name: figure for name, figure in fall.terms.items() if name != "loader_processes"}
    if loader.value is None or rest.value is None:
        return terms
    value = loader.value + rest.value
    whole = replace(rest, value=value, low=None, high=None)
    if rest.low is not None and rest.high is not None and loader.low is not None and loader.high is not None:
        # Each bound of the rest holds the half width of the other side of what was taken off.
        below = _without(rest.value - rest.low, loader.high - loader.value)
        above = _without(rest.high - rest.value, loader.value - loader.low)
        whole = replace(rest, value=value, low=value - below, high=value + above)
    return {**terms, "data_loading": whole}


def _without(half: float, part: float) -> float:
    """Return a half width without one of the independent parts whose squares it is the sum of."""
    return math.sqrt(max(0.0, half**2 - part**2))


def _side(mode: ModeSummary, launches: Sequence[LaunchFacts], cross_rank: CrossRank | None, traces: Traces) -> Side:
    ceiling = _step(mode, CEILING)
    share = rotating_wait(cross_rank, traces)
    return Side(
        mode=mode,
        imbalance=ceiling if ceiling.value is None else imbalance(launches, CEILING),
        rotating=stats.combination([(mode.step.value or 0.0, share)], "s"),
    )


def with_waterfall(found: Side, single: ModeSummary | None, copies: Side | None) -> ModeSummary:
    """Return the mode with its waterfall from `single`, or with the reason why there is none.

    `copies` is the mode COPIES of the same run; None: it was not measured.
    """
    mode = found.mode
    if mode is single:
        return mode
    reason = mode.scaling_efficiency.reason or mode.step.reason
    if single is None or mode.scaling_efficiency.value is None or mode.step.value is None:
        return replace(mode, waterfall_reason=reason or "no baseline")
    if mode.batch.rule not in BATCH_RULES:
        return replace(mode, waterfall_reason=OTHER_BATCHES)
    terms = _one_process(found, single) if _is_one_process(mode) else _terms(found, single, copies)
    if all(figure.value is None for figure, _ in terms.values()):
        return replace(mode, waterfall_reason=NO_ABLATIONS)
    return replace(mode, waterfall=_waterfall(mode, single, terms))


def _waterfall(mode: ModeSummary, single: ModeSummary, terms: Mapping[str, Term]) -> Waterfall:
    ideal = stats.combination([(_part(mode), single.step)], "s")
    known = [figure for figure, _ in terms.values() if figure.value is not None]
    other = stats.combination([(1, mode.step), (-1, ideal), *((-1, figure) for figure in known)], "s")
    unknown = [name for name, (_, source) in terms.items() if source == IN_OTHER]
    held = f" with what is unknown: {', '.join(unknown)}" if unknown else ""
    every = {**terms, "other": (other, f"residual{held}")}
    made = Waterfall(
        ideal=ideal,
        measured=mode.step,
        terms={name: every[name][0] for name in WATERFALL_TERMS},
        sources={name: every[name][1] for name in WATERFALL_TERMS},
    )
    assert math.isclose(_total(made), mode.step.value or 0.0, rel_tol=1e-9), "the waterfall does not add up"
    return made


def _total(made: Waterfall) -> float:
    return math.fsum(figure.value or 0.0 for figure in (made.ideal, *made.terms.values()))


def _terms(found: Side, single: ModeSummary, copies: Side | None) -> dict[str, Term]:
    mode = found.mode
    loader = _loader_processes(mode, single)
    return {
        "loader_processes": loader,
        "data_loading": _input(mode, single, loader[0]),
        "transfer": _transfer(found),
        "slower_ranks": _term(
            [(1, found.imbalance), (1, found.rotating)],
            "the slowest rank's pace in ablation no_data_no_comm, and its waiting in the trace",
        ),
        **_beside_others(found, single, copies),
    }


def _loader_processes(mode: ModeSummary, single: ModeSummary) -> Term:
    control = mode.loader.baseline_same_workers if mode.loader else None
    if mode.loader is not None and (mode.world_size == 1 or not mode.loader.num_workers):
        return Figure(value=0.0, low=0.0, high=0.0, n=mode.step.n, unit="s"), NO_MORE
    if control is None:
        return stats.unknown("s", "what one device would take with as many loader processes is unknown"), IN_OTHER
    part = _part(mode)
    simulated = f"one device with {control.num_workers} loader processes, simulated, less its measured step"
    return _term([(part, control.step), (-part, single.step)], simulated)


def _input(mode: ModeSummary, single: ModeSummary, loader: Figure) -> Term:
    """Return what the mode waits for data beyond one device with as many loader processes."""
    part, source = _part(mode), f"gain of ablation {NO_DATA}, less one device's"
    wait = [(1.0, _gain(mode, NO_DATA)), (-part, _gain(single, NO_DATA))]
    if any(figure.value is None for _, figure in wait) and not _on_gpu(mode):
        wait = [(1.0, mode.phases["data_wait"]), (-part, single.phases["data_wait"])]
        source = "phase data_wait on the host, less one device's"
    return _term([*wait, *([] if loader.value is None else [(-1.0, loader)])], source)


def _transfer(found: Side) -> Term:
    gain = (1.0, _gain(found.mode, NO_COMM))
    if found.rotating.value is None:
        return _term([gain], f"gain of ablation {NO_COMM}; with the waiting for occasional stragglers")
    return _term([gain, (-1.0, found.rotating)], f"gain of ablation {NO_COMM}, less waiting for peers")


def _beside_others(found: Side, single: ModeSummary, copies: Side | None) -> dict[str, Term]:
    """Return slower_compute and overhead: what computing alone takes more than on one device, and why."""
    mode, alone = found.mode, (-_part(found.mode), _step(single, NO_DATA))
    source = f"ablation {CEILING} without the imbalance of ranks, less one device's {NO_DATA}"
    if copies is not None and mode is copies.mode:
        reason = "removing communication removes DDP's hooks and bucket copies, too: they are in transfer"
        return {
            "slower_compute": _term([(1.0, found.alone), alone], source),
            "overhead": (stats.unknown("s", reason), "in transfer"),
        }
    if copies is None or copies.alone.value is None or not _comparable(mode, copies.mode):
        reason = "only beside ddp in the same run can it be told from contention"
        return {
            "slower_compute": _term([(1.0, found.alone), alone], f"{source}; the mode's overhead is in it"),
            "overhead": (stats.unknown("s", reason), "in contention"),
        }
    return {
        "slower_compute": _term([(1.0, copies.alone), alone], f"{source}, in {COPIES}"),
        "overhead": _term([(1.0, found.alone), (-1.0, copies.alone)], f"ablation {CEILING}, less that of {COPIES}"),
    }


def _one_process(found: Side, single: ModeSummary) -> dict[str, Term]:
    """Return the terms of a mode whose one process drives all devices."""
    mode, loader = found.mode, _loader_processes(found.mode, single)
    rest = [(1.0, mode.step), (-1.0, _gain(mode, NO_DATA)), (-_part(mode), _step(single, NO_DATA))]
    elsewhere = (stats.unknown("s", ONE_PROCESS), "in overhead")
    return {
        "loader_processes": loader,
        "data_loading": _input(mode, single, loader[0]),
        **dict.fromkeys(("transfer", "slower_ranks", "slower_compute"), elsewhere),
        "overhead": _term(rest, f"ablation {NO_DATA}, less one device's part of it"),
    }


def _term(parts: Sequence[tuple[float, Figure]], source: str) -> Term:
    figure = stats.combination(parts, "s")
    return figure, IN_OTHER if figure.value is None else source


def _part(mode: ModeSummary) -> float:
    """Return k: which part of the script's batch one device takes."""
    return 1 / mode.num_devices if mode.batch.rule == "global" else 1.0


def _is_one_process(mode: ModeSummary) -> bool:
    return mode.world_size == 1 and (mode.num_devices > 1 or bool(mode.placement))


def _comparable(mode: ModeSummary, copies: ModeSummary) -> bool:
    alike = (mode.num_devices, mode.batch.rule) == (copies.num_devices, copies.batch.rule)
    return alike and why_unlike_steps(mode, copies) is None


def _on_gpu(mode: ModeSummary) -> bool:
    """Return whether the host's clock says nothing of the step: a GPU works behind it."""
    return any(rank.device_type == "cuda" for rank in mode.ranks)


def _gain(mode: ModeSummary, ablation: str) -> Figure:
    return (
        mode.ablations[ablation].gain
        if ablation in mode.ablations
        else stats.unknown("s", f"ablation {ablation} was not run")
    )


def _step(mode: ModeSummary, ablation: str) -> Figure:
    return (
        mode.ablations[ablation].step
        if ablation in mode.ablations
        else stats.unknown("s", f"ablation {ablation} was not run")
    )


def rotating_wait(cross_rank: CrossRank | None, traces: Traces) -> Figure:
    """Return the share of a traced step that the rank which waits least spends on waiting for the others.

    A rank that is always the last never waits: what others wait for it is not in here. Waiting beside compute costs
    nothing, so it is at most what that rank communicates without computing.
    """
    if cross_rank is None or len(cross_rank.ranks) < 2:
        return stats.unknown("ratio", "no two ranks left a trace")
    steps = cross_rank.steps
    if not len(steps.steps) or not steps.step_ns:
        return stats.unknown("ratio", cross_rank.verdict.reason or "no whole step with common calls is in the traces")
    least = int(steps.wait_ns.mean(axis=0).argmin())
    waited = stats.mean_interval((steps.wait_ns[:, least] / steps.step_ns).tolist(), "ratio")
    known = [figure for figure in (waited, exposed_share(traces)) if figure.value is not None]
    return min(known, key=lambda figure: figure.value or 0.0)
