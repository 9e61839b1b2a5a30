"""What the ranks tell each other at the end of a segment."""

from __future__ import annotations

from dpdoctor.worker.base.director import Facts
from dpdoctor.worker.parts import Parts
from dpdoctor.worker.wrap.entered import Labels, are_one, are_same, are_same_labels, copies

DRAWN_APART = (
    "ranks draw different batches and may train on the same samples: a sampler goes on to draw from the global random "
    "state, which differs between ranks. Throughput is not affected; to distribute it, give it a generator of its own"
)
DRAWN_ALIKE = (
    "the script's samplers draw the same indices on all ranks, and other tensors enter the models: unless each rank "
    "has data of its own, ranks share samples, each of which the throughput counts once for every rank"
)
APART = (
    "in the first steps all ranks drew the same samples; random numbers that the script does not seed ({}) were alike "
    "on all ranks only by dpdoctor's seed, and are drawn apart since, as processes of the script would. What was drawn "
    "before, such as the order of an epoch, stayed the same"
)
ONE_BATCH = (
    "every step of every rank trains on one and the same batch. Where it stands in for others, as made-up data do, go "
    "by the time of a step, or make the batches in the loop"
)


def meet(parts: Parts, step_ns: int, *, warming: bool) -> tuple[Facts, int]:
    """Return what all ranks found, and how long this one waited for the others in ns.

    `step_ns` is this rank's usual step; `warming`: the optimizer that defines a step may still change.
    """
    if (why := parts.loaders.trained_in_vain()) is not None:
        parts.ending.stop("failed", why)
    changed = parts.counter.elect() if warming else False
    now = parts.clock()
    draws = parts.loaders.draws
    workers = max((loader.num_workers for loader in parts.loaders.records()), default=0)
    exchanges = parts.steplog.exchanges
    period = exchanges.period() if exchanges is not None else 1
    labels = Labels() if parts.loaders.is_any_shared() else parts.watch.entered.labels
    mine = [step_ns, parts.loaders.prefetch(), int(changed), now - parts.steplog.since_ns, workers, period]
    everyone = parts.agreement.gather(
        [
            *(*mine, draws.num, draws.digest, parts.loaders.companion.lost_ns),
            *(int(parts.loaders.are_read_whole()), *labels.told(), *parts.watch.entered.told()),
        ]
    )
    # Ranks that fetched differently far ahead cannot be compared.
    if parts.loaders.reseeds and len({n[6] for n in everyone}) == 1 < len({n[7] for n in everyone}):
        parts.report.warn(DRAWN_APART)
    told = [numbers[13:] for numbers in everyone]
    parts.report.same_samples = _drew_the_same(everyone) or _train_on_the_same(
        parts, told, same_labels=are_same_labels([numbers[10:13] for numbers in everyone])
    )
    if not (warming or parts.loaders.reseeds or parts.report.same_samples) and _draw_alike(everyone):
        parts.report.warn(DRAWN_ALIKE)
    parts.report.copies = copies(told)
    if not warming and are_one(told):
        parts.report.warn(ONE_BATCH)
    facts = Facts(
        step_s=max(numbers[0] for numbers in everyone) * 1e-9,
        prefetch=max(numbers[1] for numbers in everyone),
        reference_changed=any(numbers[2] for numbers in everyone),
        elapsed_s=everyone[0][3] * 1e-9,
        # All wait with the one that waits; two that do at once are taken for one after the other, which is rare.
        lost_s=sum(numbers[8] for numbers in everyone) * 1e-9,
        num_workers=max(numbers[4] for numbers in everyone),
        period=max(numbers[5] for numbers in everyone),
    )
    return facts, parts.clock() - now


def _draw_alike(everyone: list[list[int]]) -> bool:
    """Return whether several ranks drew indices, and the same ones."""
    return len(everyone) > 1 and everyone[0][6] > 0 and len({(numbers[6], numbers[7]) for numbers in everyone}) == 1


def _drew_the_same(everyone: list[list[int]]) -> bool:
    """Return whether ranks drew the same indices, and each trains on all of them."""
    return all(numbers[9] for numbers in everyone) and _draw_alike(everyone)


def _train_on_the_same(parts: Parts, told: list[list[int]], *, same_labels: bool) -> bool:
    """Return whether the ranks train on the same samples, given what each has told of those that entered its model.

    Where dpdoctor's seed may have made them the same, they draw apart first and are looked at anew; what the script
    seeds stays alike.
    """
    seeding, entered = parts.seeding, parts.watch.entered
    if entered.is_anew:
        same = same_labels or all(of_rank == told[0] for of_rank in told)
        if not same:
            parts.report.warn(APART.format(", ".join(seeding.unseeded)))
        return same and (told[0][0] > 0 or parts.report.same_samples)
    same = same_labels or are_same(told)
    if not same or seeding.is_apart or not seeding.unseeded:
        return same
    seeding.draw_apart(seeding.unseeded)
    entered.begin_anew()
    parts.report.drew_apart = True
    return False
