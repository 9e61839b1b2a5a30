"""unsharded_data: every rank trains on the same data."""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import OWN_GENERATORS, Figure, Finding, Loader, ModeFacts
from dpdoctor.rules.rule import CannotTell, Rule, faster_without

OF_A_STREAM = "let the dataset's __iter__ give each rank and each worker another part"
CODE_OF_A_STREAM = """\
info = torch.utils.data.get_worker_info()  # None without workers
workers, worker = (info.num_workers, info.id) if info else (1, 0)
itertools.islice(items, rank * workers + worker, None, world_size * workers)"""
OF_A_LOOP = (
    "draw the batches from a torch DataLoader with a sampler, which is shared out among the ranks, or let each rank "
    "take a part of its own"
)
BY_SEED = "; where only the seed makes them the same, as in an environment, give --seed-per-rank"
MAY_BE_BY_SEED = (
    "; --seed-per-rank helps only where global generators of torch, numpy or Python pick them once the optimizer is "
    "built, not a generator of the script's own, such as np.random.default_rng(0)"
)
OUT_OF_REACH = (
    "; --seed-per-rank does not reach what picks them, such as a generator of the script's own, as "
    "np.random.default_rng(0) is, or an order that was drawn before the optimizer was built"
)
OF_A_DATASET = (
    "the loader is shared out, but its dataset draws what it returns by random numbers that the script seeds alike on "
    "every rank: seed them by the rank"
)
OR_OPTION = ", or give --seed-per-rank"
OF_OUR_SEED = (
    "give --seed-per-rank: the script does not seed {} with a number of its own, and dpdoctor's seed may be all that "
    "makes ranks draw the same samples; processes of its own draw apart"
)
ASKS_RANK = "{} asks for its rank, and dpdoctor answers as if there were one process."
TO_BE_OBSERVED = "profile with --modes native: under torchrun, where it is told its rank, the script may draw apart"
OF_ITS_OWN = "let each rank take a part of its own: the script's loader draws the same batches on every rank"
CODE_OF_ITS_OWN = """\
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size, sampler=sampler)
sampler.set_epoch(epoch)  # as each epoch begins, for an order of its own"""
TOO_SHORT = "make batches smaller, so that there is one for each rank, or let ranks share each one: --batch global"

SEEN = (
    "In the steps before the measured windows the indices that all ranks drew, the labels that they were given or "
    "what entered the model were the same, bit by bit."
)
ONE_MODEL = (
    "all ranks train on the same samples and hold different parameters: where they compute parts of one model, as in "
    "tensor parallelism, they have to"
)


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    loader, conversion = _whole_loader(facts), facts.mode.conversion
    is_seen = conversion is not None and conversion.same_samples
    if conversion is None or (loader is None and not is_seen):
        return None
    if is_seen and facts.may_split_model:
        return CannotTell(reason=ONE_MODEL)
    ranks, size = units.count(facts.mode.world_size, "rank"), facts.mode.world_size
    short = None if loader else _short_loader(facts)
    whole = loader or short
    is_own = any(ld.rule == "own" for ld in conversion.loaders)
    cost = Figure(value=1 - 1 / size, n=1, unit="ratio")
    by_seed = is_seen and bool(conversion.alike_by_seed)
    of_a_stream = OF_A_STREAM if is_seen else f"unless it already does, {OF_A_STREAM}"
    found = Finding(
        rule="unsharded_data",
        mode=facts.name,
        severity="critical" if is_seen and not by_seed else "warning",
        status="confirmed" if is_seen and not by_seed else "inferred",
        title=f"{ranks} train on the same samples here, which may be by dpdoctor's seed alone"
        if by_seed
        else f"{ranks} train on the same samples: {size} devices do the work of one"
        if is_seen
        else f"each of {ranks} reads all of the data: an epoch is no shorter than on one device",
        cost=cost,
        share_of="epoch",
        evidence=(*_of_samples(size, is_seen=is_seen, by_seed=by_seed), *(_of_loader(whole) if whole else ())),
        cause=None,
        remedy=OF_ITS_OWN if is_own else of_a_stream if loader else _remedy(facts, short),
        short_remedy="give --seed-per-rank" if by_seed else "give each rank samples of its own" if is_seen else None,
        speedup=faster_without(cost) if is_seen and not by_seed else None,
        speedup_basis="at most",
        code=CODE_OF_ITS_OWN if is_own else CODE_OF_A_STREAM if loader else None,
        line=whole.built or whole.line if whole else next((unit.line for unit in conversion.modules), None),
    )
    return _in_doubt(found, ranks, conversion.asks_rank) if conversion.asks_rank and not by_seed else found


def _in_doubt(found: Finding, ranks: str, asking: str) -> Finding:
    """Return what is found where code asked for its rank, which was hidden from it: with it, it may draw apart."""
    return replace(
        found,
        severity="warning",
        status="inferred",
        title=f"{ranks} train on the same samples here, where dpdoctor hides their rank from code that asks for it",
        evidence=(SEEN, ASKS_RANK.format(asking)),
        remedy=TO_BE_OBSERVED,
        short_remedy="profile with --modes native",
        speedup=None,
        code=None,
    )


def _remedy(facts: ModeFacts, short: Loader | None) -> str:
    loader, conversion = facts.mode.loader, facts.mode.conversion
    if short:
        return TOO_SHORT
    if conversion is not None and conversion.alike_by_seed:
        return OF_OUR_SEED.format(" and ".join(conversion.alike_by_seed))
    is_given, is_native = facts.spec.seed_per_rank, facts.mode.native is not None
    if loader and loader.index >= 0:
        return OF_A_DATASET if is_given or is_native else f"{OF_A_DATASET}{OR_OPTION}"
    if is_native:
        return OF_A_LOOP
    if is_given:
        return f"{OF_A_LOOP}{OUT_OF_REACH}"
    by_seed = conversion is not None and any(name != OWN_GENERATORS for name in conversion.drawn_alike)
    return f"{OF_A_LOOP}{BY_SEED if by_seed else MAY_BE_BY_SEED}"


def _of_samples(size: int, *, is_seen: bool, by_seed: bool) -> tuple[str, ...]:
    if not is_seen:
        return (f"The throughput counts each sample {units.count(size, 'time')}.",)
    return (SEEN,) if by_seed else (SEEN, "The throughput counts each sample once.")


def _of_loader(loader: Loader) -> tuple[str, ...]:
    note = f"{loader.note[0].upper()}{loader.note[1:]}." if loader.note else ""
    return tuple(filter(None, (f"The loader over {loader.dataset} was iterated whole by every rank.", note)))


def _short_loader(facts: ModeFacts) -> Loader | None:
    """Return the loader that feeds the training and has fewer batches than there are ranks; None: it has enough."""
    conversion, loader, size = facts.mode.conversion, facts.mode.loader, facts.mode.world_size
    if conversion is None or loader is None or not 0 <= loader.index < len(conversion.loaders):
        return None
    found = conversion.loaders[loader.index]
    is_short = found.rule == "whole" and found.num_batches is not None and found.num_batches < size
    return found if is_short else None


def _whole_loader(facts: ModeFacts) -> Loader | None:
    """Return the training loader that every rank reads whole though it could be shared; None: there is none."""
    conversion, batches = facts.mode.conversion, facts.mode.loader
    if facts.mode.world_size < 2 or conversion is None:
        return None
    loaders = [ld for ld in conversion.loaders if not ld.is_for_evaluation]
    if batches is not None:  # others than the one that fed the steps do not matter
        loaders = [ld for number, ld in enumerate(conversion.loaders) if number == batches.index]
    return next((ld for ld in loaders if ld.rule == "whole" and ld.num_batches is None), None)


RULE = Rule(
    name="unsharded_data",
    title="Every rank trains on the same data",
    what="Each rank reads the whole dataset instead of its part of it.",
    why="An IterableDataset cannot be divided from outside; unless it asks for its rank itself, N devices train on "
    "each sample N times per epoch and an epoch takes as long as on one.",
    how="dpdoctor divides the batches of every loader that has a sampler, and knows which it had to give to every rank "
    "whole. In a few steps that are not measured it compares, of all ranks, what enters the model, of loaders that "
    "are not divided also the labels in their batches, without loaders what torch's losses are held to, and of those "
    "with fewer batches than ranks the indices: where these are the same, bit by bit, this is confirmed, but not of "
    "ranks to which loaders gave other batches, of which then none enters the model, nor of ranks that hold "
    "different parameters without DDP or FSDP: they may compute parts of one model, as in tensor parallelism, nor "
    "where the script or a library asks for its rank, which dpdoctor hides: with it ranks may draw apart.",
    remedy="Divide the stream in the dataset's __iter__, by rank and by worker.",
    verified=False,
    check=_check,
)
