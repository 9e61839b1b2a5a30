"""unsharded_data: every rank trains on the same data."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, Loader
from dpdoctor.rules._base import Case, Rule


def _check(case: Case) -> Finding | None:
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
    "whole. Whether the dataset's own code divides the stream cannot be seen from outside: so this is never confirmed.",
    remedy="Divide the stream in the dataset's __iter__, by rank and by worker.",
    verified=False,
    check=_check,
)
