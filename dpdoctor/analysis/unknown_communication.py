"""Whether the traces tell what the ranks communicate; where they do not, nothing is computed from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from dpdoctor import units
from dpdoctor.digest import HOST, MOST_SUSPECTS, DeviceStep, Digest, kernel_words, nothing_known
from dpdoctor.records import Launch, Run

MAY_HOLD = "may hold communication"
# What the table of kernels also holds: copies, memsets, and a last row for all others.
_NO_KERNEL = ("Memcpy", "Memset", "Copy", "(")


def why_unknown(digests: Sequence[Digest]) -> str | None:
    """Return why it is unknown what the ranks communicate, of the first of them; None: it is known of all."""
    unknown = [(digest.rank, digest.unknown_communication) for digest in digests if digest.unknown_communication]
    if not unknown or len(digests) == 1:
        return unknown[0][1] if unknown else None
    (rank, reason), others = unknown[0], units.count(len(unknown) - 1, "other trace")
    which = "one trace" if rank is None else f"rank {rank}"
    return f"{which}{f' and {others}' if len(unknown) > 1 else ''}: {reason}"


def exposed_ns(step: DeviceStep) -> int:
    """Return the communication of a step beside which nothing computes.

    Raises:
        ValueError: it is unknown, which `why_unknown` says before.
    """
    if step.breakdown.exposed_comm_ns is None:
        raise ValueError("communication is unknown")
    return step.breakdown.exposed_comm_ns


def hidden_ns(step: DeviceStep) -> int:
    """Return the communication of a step beside compute.

    Raises:
        ValueError: it is unknown.
    """
    if step.breakdown.comm_ns is None:
        raise ValueError("communication is unknown")
    return step.breakdown.comm_ns - exposed_ns(step)


def with_unknown(run: Run) -> Run:
    """Return the run with the communication unknown, too, of ranks whose own trace does not say that there are others.

    Traces of which none says how many ranks there are tell it together, by the ranks that they are of.
    """
    return replace(run, modes={name: tuple(map(_of_launch, launches)) for name, launches in run.modes.items()})


def _of_launch(launch: Launch) -> Launch:
    digests = [rank.digest for rank in launch.ranks if rank.digest]
    numbers = {digest.rank for digest in digests} - {None}
    if len(numbers) < 2 or any(digest.world_size is not None for digest in digests):
        return launch
    ranks = tuple(replace(rank, digest=_judged(rank.digest, len(numbers))) for rank in launch.ranks)
    return replace(launch, ranks=ranks)


def _judged(digest: Digest | None, num_ranks: int) -> Digest | None:
    if digest is None or digest.rank is None or digest.unknown_communication or not digest.devices:
        return digest
    budgets = [budget for device in digest.devices for budget in (device.whole, *(s.breakdown for s in device.steps))]
    if digest.calls.begin_ns or any(budget.comm_ns for budget in budgets):
        return digest
    suspects = [*islice(_largest(digest), MOST_SUSPECTS)]
    return digest.without_communication(nothing_known(units.count(num_ranks, "rank"), suspects))


def _largest(digest: Digest) -> Iterator[str]:
    kernels = (kernel for kernel in digest.kernels if kernel.device != HOST)
    for kernel in sorted(kernels, key=lambda kernel: -kernel.total_ns):
        if not kernel.name.startswith(_NO_KERNEL):
            yield kernel_words(kernel.name, kernel.total_ns)
