"""How the samples of a mode are counted, and the proof: what was handed out, entered the model and was stepped on.

Of ranks that dpdoctor did not start: how many there are, whose samples they train on, how they compare with one alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis.base.launches import Window
from dpdoctor.analysis.base.summary import ModeSummary
from dpdoctor.records import (
    OWN_GENERATORS,
    POINT_TO_POINT,
    Check,
    InputTensor,
    LaunchRecord,
    Loader,
    RankRecord,
    StepRecord,
)
from dpdoctor.spec import BASELINE, ModeSpec

CHECK = "samples"
GIVEN, DRAWN, ENTERED = (
    "--samples-per-step",
    "indices drawn by the loader",
    "first tensor of forward",
)
NONE_COUNTED = "no step's samples could be counted{}; give --samples-per-step"
UNCOUNTED = "the samples of some steps could not be counted{}; give --samples-per-step"
UNRECONCILED = (
    "{} trained on {} rows where the loader's batches have {} samples, and it cannot be told whether rows are samples "
    "of which some were left out, or hold several each; give --samples-per-step"
)
MORE_ROWS = (
    "{} trained on {} rows where the batches of the loaders have {} samples, and it cannot be told whether samples "
    "have several rows each, as several views of one have, or rows come from elsewhere; give --samples-per-step"
)
OTHER_ROWS = (
    "{} trained on the {} samples of the loader's batches, and on other rows, of which it cannot be told whether they "
    "are samples too; give --samples-per-step"
)
UNSEEN_ROWS = (
    "{} trained on rows that could not be counted where the loader's batches have {} samples; give --samples-per-step"
)
# Of so many steps one may be odd: one in which the script looks at something with its model, say.
MOST_ODD_SHARE = 0.05
# Frameworks fetch so many batches ahead, which may fall to another window.
MOST_AHEAD = 3
NO_PROOF = "--samples-per-step counts; nothing was compared with it"


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """How samples are counted.

    Attributes:
        source: in words.
        samples: of a step of one rank.
        check: the proof; None: nothing was measured.
        unknown: why they could not be counted; None: they could.
    """

    source: str
    samples: Callable[[StepRecord], int]
    check: Check | None
    unknown: str | None = None


def counting(
    launches: Sequence[Sequence[Window]], samples_per_step: int | None, first: RankRecord | None = None
) -> Counting:
    """Return where samples are counted: the user's word, else loaders' indices that were trained on, else forwards.

    `first`: of a rank that tells what entered the first forward of a step, and why samples are not counted.
    """
    steps = [step for launch in launches for window in launch for rank in window.ranks for step in rank.counted]
    if samples_per_step is not None:
        check = Check(name=CHECK, ok=None, text=NO_PROOF) if steps else None
        return Counting(source=GIVEN, samples=lambda _: samples_per_step, check=check)
    if not any(step.samples_drawn for step in steps):
        return _by_rows(steps, _why_of(first))
    if _takes_several_steps_to_a_batch(steps, sum(len(w.ranks) for launch in launches for w in launch)):
        text = f"{_entered(steps)}; the script takes several steps on each batch: rows that entered count"
        return Counting(source=ENTERED, samples=_rows, check=Check(name=CHECK, ok=True, text=text))
    inputs = first.counters.inputs if first is not None and first.counters is not None else ()
    loaders = first.conversion.loaders if first is not None else ()
    unknown = _why_unknown(steps, _why_of(first)) or _why_items_may_be_batches(steps, inputs, loaders)
    num_windows = sum(map(len, launches))
    return Counting(
        source=DRAWN,
        samples=_drawn,
        check=Check(name=CHECK, ok=None if unknown else True, text=unknown or _proof(steps, num_windows)),
        unknown=unknown,
    )


def _why_of(first: RankRecord | None) -> str:
    """Return what a rank says of why samples are not counted, as what follows after that."""
    return f": {first.conversion.uncounted}" if first is not None and first.conversion.uncounted else ""


def _drawn(step: StepRecord) -> int:
    return step.samples_drawn


def _rows(step: StepRecord) -> int:
    return step.samples_entered


def _by_rows(steps: Sequence[StepRecord], why: str) -> Counting:
    """Return the counting of a script whose training no loader feeds that counts; it has nothing to be held against."""
    unknown = None
    if not all(step.samples_entered for step in steps):
        unknown = (UNCOUNTED if any(step.samples_entered for step in steps) else NONE_COUNTED).format(why)
    check = None
    if steps:
        text = unknown or f"{_entered(steps)}; no loader counts samples that this could be compared with"
        check = Check(name=CHECK, ok=None, text=text)
    return Counting(source=ENTERED, samples=_rows, check=check, unknown=unknown)


def _takes_several_steps_to_a_batch(steps: Sequence[StepRecord], num_parts: int) -> bool:
    """Return whether steps without a fresh batch train on the rows of an older one: fewer, or as many, at a time.

    Together on all of it: rows of several samples each are fewer, too. The steps are of so many parts, windows of a
    rank, each of which may have left the rest of a batch to what follows.
    """
    fresh = [step.samples_drawn for step in steps if step.samples_drawn]
    entered = sum(step.samples_entered for step in steps)
    if len(fresh) == len(steps) or entered + num_parts * max(fresh) < sum(fresh):
        return False
    return all(step.samples_entered and step.samples_drawn % step.samples_entered == 0 for step in steps)


def _why_unknown(steps: Sequence[StepRecord], why: str) -> str | None:
    if not all(step.samples_drawn for step in steps):
        return UNCOUNTED.format(why)
    odd = [step for step in steps if not step.reconciled]
    if len(odd) <= MOST_ODD_SHARE * len(steps):
        return None
    # Of all without their number, which differs between modes: what is alike in them is told once.
    which = "each measured step" if len(odd) == len(steps) else f"of {len(steps)} measured steps {len(odd)}"
    drawn = _range([step.samples_drawn for step in odd])
    if not any(step.samples_entered for step in odd):
        return UNSEEN_ROWS.format(which, drawn)
    if all(step.samples_entered == step.samples_drawn for step in odd):
        return OTHER_ROWS.format(which, drawn)
    has_more = all(step.samples_entered > step.samples_drawn for step in odd)
    told = MORE_ROWS if has_more else UNRECONCILED
    return told.format(which, _range([step.samples_entered for step in odd]), drawn)


def _why_items_may_be_batches(
    steps: Sequence[StepRecord], inputs: Sequence[InputTensor], loaders: Sequence[Loader]
) -> str | None:
    """Return why an index may be more than one sample: single ones, each of as many rows; texts are of many lengths.

    So may a number of a range, of however many rows: a batch begins there, say.
    """
    if any(step.samples_drawn > step.micro_batches for step in steps) or any(map(_holds_one, inputs)):
        return None
    most = (1 - MOST_ODD_SHARE) * len(steps)
    rows, number = Counter(step.samples_entered / step.samples_drawn for step in steps).most_common(1)[0]
    if rows <= 1 or number < most:
        has_more = sum(step.samples_entered > step.samples_drawn for step in steps) >= most
        draws_numbers = bool(loaders) and all(loader.dataset == range.__name__ for loader in loaders)
        return OF_A_RANGE if has_more and draws_numbers else None
    alike = [step for step in steps if step.samples_entered / step.samples_drawn == rows]
    drawn, entered = Counter((step.samples_drawn, step.samples_entered) for step in alike).most_common(1)[0][0]
    indices = f"{drawn} {'index' if drawn == 1 else 'indices'}"
    return ITEM_IS_BATCH.format(indices, entered, drawn)


def _holds_one(tensor: InputTensor) -> bool:
    """Return whether a dimension that may be the batch's is of one: the first, or the second but of features."""
    is_matrix = len(tensor.shape) == 2 and "float" in tensor.dtype
    return 1 in tensor.shape[: 1 if is_matrix else 2]


def _proof(steps: Sequence[StepRecord], num_windows: int) -> str:
    trained, rows = sum(step.samples_drawn for step in steps), sum(step.samples_entered for step in steps)
    text = (
        f"{units.whole(trained)} samples of {units.count(len(steps), 'measured step')} entered the model with "
        "gradients on, a backward pass came to them, and they were stepped on"
    )
    if rows not in {0, trained}:  # 0: nobody could count them, as in a list
        text += f"; {units.digits(rows / len(steps))} rows of its first tensor hold those of a step"
    if any(step.samples_handed is None for step in steps):
        return text
    return f"{text}; {_handed_out(sum(step.samples_handed or 0 for step in steps), trained, len(steps), num_windows)}"


def _handed_out(handed: int, trained: int, num_steps: int, num_windows: int) -> str:
    per_step = trained / num_steps
    if abs(handed - trained) <= MOST_AHEAD * per_step * num_windows:
        return "the loaders handed out as many" + ("" if handed == trained else ", but for what lies ahead")
    told = (
        f"the loaders handed out {units.digits(handed / num_steps)} per step, {units.digits(per_step)} were trained on"
    )
    if handed > trained:
        return f"{told}: the script passes batches over, or parts of them, or evaluates on what it trains on"
    return (
        f"{told}: batches that were fetched long before, or apart from the training, count when they are trained on, "
        "and those that several steps train on in each"
    )


def _entered(steps: Sequence[StepRecord]) -> str:
    return f"{_range([step.samples_entered for step in steps])} rows per step entered the model with gradients on"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return units.whole(low) if low == high else f"{units.whole(low)} to {units.whole(high)}"


IN_STAGES = (
    "ranks send each other tensors, as stages of a pipeline do, and which of them train on the same samples is not "
    "known: give --samples-per-step"
)
UNLIKE_GROUPS = "some ranks train on the same samples and others on their own: give --samples-per-step"
DRAWN_ALIKE = (
    "what each step draws with {}, which the script seeds itself, is the same on every rank, and other numbers that "
    "enter the model are not: if it picks the samples, ranks train on the same ones. Seed it by the rank{}"
)
ALIKE_BY_SEED = (
    "ranks train on the same samples here, and the script does not seed {} with a number of its own: its own processes "
    "may draw other samples on each rank. Give --seed-per-rank, which draws as they do"
)
ASKS_RANK = (
    "ranks train on the same samples here, where {} asks for its rank, and dpdoctor answers as if there were one "
    "process: under torchrun it may draw apart. Profile with --modes native"
)
ITEM_IS_BATCH = (
    "each step draws {0} of the loader, whose items enter the model as {1:,} rows: where an item is a batch, give "
    "--samples-per-step {1}; where it is one sample, --samples-per-step {2}"
)
OF_A_RANGE = (
    "the loader draws single numbers of a range, and more rows than one enter the model for each: whether a collate "
    "function makes a batch of one cannot be told; give --samples-per-step"
)
# Mean batches differ by this much where an epoch's last one is short.
SAME_BATCH = 0.02


def with_ranks_found(spec: ModeSpec, launch: LaunchRecord) -> ModeSpec:
    """Return a mode with the ranks that there were, where somebody else than dpdoctor started them."""
    size = launch.world_size
    return replace(spec, world_size=size, num_devices=size) if size else spec


def why_uncounted(first: RankRecord | None, alike: int) -> str | None:
    """Return why the samples of ranks are unknown, of which so many train on the same; None: they are not."""
    if first is not None and first.conversion.made_anew:
        return f"{first.conversion.made_anew}: give --samples-per-step"
    if first is not None and any(way.name == POINT_TO_POINT for way in first.conversion.strategies):
        return IN_STAGES
    if first is not None and first.conversion.drawn_alike and not first.conversion.same_samples:
        names = first.conversion.drawn_alike
        return DRAWN_ALIKE.format(" and ".join(names), "" if OWN_GENERATORS in names else ", or give --seed-per-rank")
    if first is not None and first.conversion.alike_by_seed:
        return ALIKE_BY_SEED.format(" and ".join(first.conversion.alike_by_seed))
    if first is not None and first.conversion.asks_rank:
        return ASKS_RANK.format(first.conversion.asks_rank)
    return None if alike else UNLIKE_GROUPS


def with_batch_rule(mode: ModeSummary, baseline: ModeSummary | None) -> ModeSummary:
    """Return a mode whose script shares out its batches with the rule by which it does, seen beside one rank's."""
    if mode.native is None or mode is baseline:
        return mode
    alone = baseline.batch.per_device if baseline is not None and baseline.native is not None else None
    rule = "own"
    if alone and mode.batch.per_device:
        part = mode.batch.per_device / alone
        if math.isclose(part, 1, rel_tol=SAME_BATCH):
            rule = "per-device"
        elif math.isclose(part, 1 / mode.num_devices, rel_tol=SAME_BATCH):
            rule = "global"
    return replace(mode, batch=replace(mode.batch, rule=rule))


def why_unlike(mode: ModeSummary, baseline: ModeSummary) -> str | None:
    """Return why the ranks of a mode are not to be held against a rank alone; None: they may be."""
    if mode.native is None or baseline.native is None:
        return None
    if mode.world_size == 1:
        return f"`{' '.join(mode.native.launcher)}` made the script one rank"
    if baseline.world_size > 1:
        return f"`{BASELINE}` was to be one rank, but the script started {units.count(baseline.world_size, 'rank')}"
    ours, alone = ({rank.device for rank in one.ranks[:1]} for one in (mode, baseline))
    if ours != alone:
        return f"one of several ranks computed on {_names(ours)}, one alone on {_names(alone)}; set OMP_NUM_THREADS"
    return None


def _names(devices: set[str]) -> str:
    return ", ".join(sorted(devices)) or "nothing known"
