"""unsharded_data: every rank trains on the same data."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, Loader
from dpdoctor.rules._base import Case, Rule


def _check(case: Case) -> Finding | None:
    return _seen(case) or _supposed(case)


def _seen(case: Case) -> Finding | None:
    """Return the finding where the same tensors entered the model on all ranks."""
    adoption = case.mode.adoption
    if adoption is None or not adoption.same_samples:
        return None
    ranks, size = units.count(case.mode.world_size, "rank"), case.mode.world_size
    unit = adoption.units[0] if adoption.units else None
    return Finding(
        rule="unsharded_data",
        mode=case.name,
        severity="critical",
        status="confirmed",
        title=f"{ranks} train on the same samples: {size} devices do the work of one",
        cost=Figure(value=1 - 1 / size, n=1, unit="ratio"),
        of="epoch",
        evidence=(
            "In the steps before the measured windows, what entered the model was the same on all ranks, bit by bit.",
            "Each sample is counted once.",
        ),
        cause=None,
        remedy="draw the batches from a torch DataLoader, which is shared out among the ranks, or let each rank take "
        "a part of its own; where only the seed makes them the same, as in an environment, give --seed-per-rank",
        code="DataLoader(dataset, batch_size=..., shuffle=True)",
        line=unit.line if unit else None,
    )


def _supposed(case: Case) -> Finding | None:
    """Return the finding where a loader was read whole by all ranks, but may have divided its data itself."""
    loader = _whole_loader(case)
    if loader is None:
        return None
    ranks, size = units.count(case.mode.world_size, "rank"), case.mode.world_size
    wasted = 1 - 1 / size
    return Finding(
        rule="unsharded_data",
        mode=case.name,
        severity="warning",
        status="inferred",
        title=f"each of {ranks} reads all of the data: an epoch is no shorter than on one device",
        cost=Figure(value=wasted, n=1, unit="ratio"),
        of="epoch",
        evidence=(
            f"The loader over {loader.dataset} was iterated whole by every rank.",
            *([f"{loader.note[0].upper()}{loader.note[1:]}."] if loader.note else []),
            f"The throughput counts each sample {units.count(size, 'time')}.",
        ),
        cause=None,
        remedy="unless it already does, let the dataset's __iter__ give each rank and each worker another part",
        code="itertools.islice(items, rank * num_workers + worker, None, world_size * num_workers)",
        line=loader.line,
    )


def _whole_loader(case: Case) -> Loader | None:
    """Return the training loader that every rank reads whole though it could be shared; None: there is none."""
    adoption, batches = case.mode.adoption, case.mode.loader
    if case.mode.world_size < 2 or adoption is None:
        return None
    whole = [ld for ld in adoption.loaders if ld.rule == "whole" and ld.num_batches is None]
    # Where the loader that fed the steps is known, others, such as an evaluation's, do not matter.
    fed = [ld for ld in whole if batches is None or (ld.line, ld.dataset) == (batches.line, batches.dataset)]
    return fed[0] if fed else None


RULE = Rule(
    title="Every rank trains on the same data",
    what="Each rank reads the whole dataset instead of its part of it.",
    why="An IterableDataset cannot be divided from outside; unless it asks for its rank itself, N devices train on "
    "each sample N times per epoch and an epoch takes as long as on one.",
    how="dpdoctor divides the batches of every loader that has a sampler, and knows which it had to give to every rank "
    "whole. In a few steps that are not measured it compares what enters the model on all ranks: where that is the "
    "same, bit by bit, this is confirmed.",
    remedy="Divide the stream in the dataset's __iter__, by rank and by worker.",
    verified=False,
    check=_check,
)
