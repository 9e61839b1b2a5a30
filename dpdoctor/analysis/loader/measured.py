"""What the simulation is fed with, taken from one mode's measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import msgspec

from dpdoctor.analysis.base.windows import NS
from dpdoctor.analysis.loader import facts
from dpdoctor.analysis.loader.feed import Feed, WindowFeed
from dpdoctor.analysis.loader.simulate import Cores, Setting, Times
from dpdoctor.loading import IN_PROCESS, BatchRecord
from dpdoctor.records import Launch, RankRecord
from dpdoctor.spec import RunHeader

NO_SEQUENCE = "no two batches in a row were asked for in a full window"
NO_SENDING = "the transfer from a worker was not measured"
# torch's value where a script leaves it out.
DEFAULT_PREFETCH = 2


class UnknownError(ValueError):
    """Something that the simulation needs was not measured; the message says what."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One full window of one rank: seconds of its fetches and of its own work between asks, in their order.

    As they would be with a core for every thread.
    """

    fetch: tuple[float, ...]
    compute: tuple[float, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One loader and its training loop, as measured in `blocks` under `setting`.

    `send` and `receive` are simulate.Times', the seconds of one hand-off.
    """

    blocks: tuple[Block, ...]
    setting: Setting
    cores: Cores
    send: float
    receive: float

    def times(self, blocks: Sequence[Block]) -> Times:
        """Return the times of these blocks, one after another."""
        return Times(
            fetch=[seconds for block in blocks for seconds in block.fetch],
            compute=[seconds for block in blocks for seconds in block.compute],
            send=self.send,
            receive=self.receive,
        )


def measured(feed: Feed, launch: Launch, header: RunHeader) -> Measured:
    """Return what one mode's launch says of its loader and its steps.

    Raises:
        UnknownError: something is missing.
    """
    blocks = tuple(block for part in feed.parts if (block := _block(part)) is not None)
    if not blocks:
        raise UnknownError(facts.fetch_time(feed).reason or NO_SEQUENCE)
    hand_offs = facts.hand_offs(feed, launch)
    failure = next((hand_off.failure for hand_off in hand_offs if hand_off.failure), None)
    if failure is not None:
        raise UnknownError(f"the dataset works in no loader process; there it raises {failure}")
    receive = facts.receive(feed, hand_offs)
    if receive.value is None or not hand_offs:
        raise UnknownError(NO_SENDING)
    return Measured(
        blocks=blocks,
        setting=present(feed),
        cores=_cores(feed, launch, header, blocks),
        send=max(hand_off.send_ns for hand_off in hand_offs) * NS,
        receive=receive.value,
    )


def present(feed: Feed) -> Setting:
    """Return what the script sets."""
    loader = feed.loader
    return Setting(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH,
        in_order=loader.in_order,
    )


def ranks_of_a_node(launch: Launch) -> int:
    """Return the most ranks that share a machine."""
    hosts = Counter(rank.record.host for rank in launch.ranks if rank.record)
    return max(hosts.values(), default=1)


def _block(part: WindowFeed) -> Block | None:
    """Return a window's times, without the waits for a core; None: nothing follows anything in it.

    Without workers all that an ask takes beyond the fetch is work of the training thread.
    """
    compute = tuple(
        _without_queue(after.asked_ns - batch.asked_ns - _loading_ns(batch), after.gap_queued_ns)
        for batch, after in pairwise(part.steady)
        if (after.iteration, after.batch) == (batch.iteration, batch.batch + 1)
    )
    fetch = tuple(_without_queue(batch.fetch_ns, batch.queued_ns) for batch in part.fetched)
    return Block(fetch=fetch, compute=compute) if fetch and compute else None


def _loading_ns(batch: BatchRecord) -> int:
    return batch.fetch_ns if batch.worker == IN_PROCESS else batch.wait_ns


def _without_queue(total_ns: int, queued_ns: int) -> float:
    return max(0, total_ns - queued_ns) * NS


def _cores(feed: Feed, launch: Launch, header: RunHeader, blocks: Sequence[Block]) -> Cores:
    records = [rank.record for rank in launch.ranks if rank.record]
    threads = max((_threads(record) for record in records), default=1)
    ratio = facts.cpu_ratio(feed).value
    return Cores(
        num=header.fingerprint.cores / ranks_of_a_node(launch),
        fetch=1.0 if ratio is None else min(1.0, ratio),
        compute=min(_compute_cores(feed, records, blocks), threads),
        threads=threads,
    )


def _threads(record: RankRecord) -> int:
    """Return the threads that compute a step; beside a GPU one feeds it, and the others have little to do."""
    return max(1, record.conversion.num_threads) if record.device_type == "cpu" else 1


def _compute_cores(feed: Feed, records: Sequence[RankRecord], blocks: Sequence[Block]) -> float:
    """Return the cores that a training process keeps busy between its asks; no limit where nobody counted."""
    uses = [record.cpu for record in records if record.cpu and record.cpu.wall_s > 0]
    compute = fmean(seconds for block in blocks for seconds in block.compute)
    if not uses or compute <= 0:
        return math.inf
    wall_s, asks = sum(part.window.wall_s for part in feed.parts), sum(len(part.asked) for part in feed.parts)
    per_ask = sum(use.cpu_s for use in uses) / sum(use.wall_s for use in uses) * wall_s / asks
    own = [batch.cpu_ns * NS for part in feed.parts for batch in part.fetched if batch.worker == IN_PROCESS]
    return max(0.0, per_ask - (fmean(own) if own else 0.0)) / compute
