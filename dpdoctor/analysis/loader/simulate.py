"""An event simulation of torch's DataLoader feeding a training loop, on given times of each fetch and each step.

It does what torch/utils/data/dataloader.py (2.15) does: batch k is fetched by worker k mod num_workers; of each worker
at most `prefetch_factor` batches are under way or lie ready, and it gets its next task when one of its batches is
handed over. In order, the training thread takes batch k and no other; out of order, the one that was ready first.
Without workers it fetches by itself. Where more threads are runnable than there are cores, all of them go slower.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence

import msgspec


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """The cores that one rank and its workers share, and what each of their activities takes of them.

    Attributes:
        num: cores of this rank; of those that several ranks share, its part.
        fetch: cores that one fetch keeps busy: near 1 it computes, near 0 it waits for I/O.
        compute: cores that the training process keeps busy between two asks.
        threads: of one operation of the training process; its work is done when the last of them is.
    """

    num: float
    fetch: float = 1.0
    compute: float = 1.0
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.num > 0 or self.threads < 1:
            raise ValueError(f"{self.num} cores for {self.threads} threads; there must be some of both")
        if min(self.fetch, self.compute) < 0:
            raise ValueError(f"fetching takes {self.fetch} cores, computing {self.compute}; neither can be below 0")

    def fetch_pace(self, num_fetching: int, training: float) -> float:
        """Return the pace of each fetch, 1 at most, beside a training process that keeps `training` cores busy."""
        share = min(1.0, self.fetch)
        return 1 / (1 - share + share * self._stretch(num_fetching * self.fetch + training))

    def compute_pace(self, num_fetching: int) -> float:
        """Return the pace of the training process beside so many fetches.

        While several threads of it compute, the last one counts: one fetch beside as many threads as cores halves the
        pace, where a single thread would only lose its part.
        """
        others = num_fetching * self.fetch
        together = self._share_together()
        alone = min(1.0, self.compute) * (1 - together)
        waits = 1 - together - alone
        return 1 / (waits + alone * self._stretch(others + 1) + together * self._slowest(others + self.threads))

    def receive_pace(self, num_fetching: int) -> float:
        """Return the pace of the training thread while it takes a batch over."""
        return 1 / self._stretch(num_fetching * self.fetch + 1)

    def _share_together(self) -> float:
        """Return the share of the time in which all threads compute, if in the rest only one does."""
        return min(1.0, max(0.0, self.compute - 1) / (self.threads - 1)) if self.threads > 1 else 0.0

    def _stretch(self, runnable: float) -> float:
        """Return how much longer threads take that share the cores evenly."""
        return max(1.0, runnable / self.num)

    def _slowest(self, runnable: float) -> float:
        """Return how much longer the slowest of the threads takes, each of which stays on its core."""
        below = math.floor(runnable)
        part = runnable - below
        queue = (1 - part) * math.ceil(below / self.num) + part * math.ceil((below + 1) / self.num)
        return max(1.0, queue)


# By number of fetches under way: their pace, and that of what the training thread does meanwhile.
Paces = Sequence[tuple[float, float]]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a script sets of its loader. Without workers `prefetch_factor` says nothing."""

    num_workers: int
    prefetch_factor: int = 2
    in_order: bool = True


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, as they are while nobody contends for a core; both sequences start over when they end.

    Attributes:
        fetch: of each batch, in order.
        compute: from getting each batch to asking for the next.
        send: of a worker to hand a batch over; it fetches nothing meanwhile.
        receive: of the training thread to take a batch over.
    """

    fetch: Sequence[float]
    compute: Sequence[float]
    send: float = 0.0
    receive: float = 0.0

    def __post_init__(self) -> None:
        if not self.fetch or not self.compute:
            raise ValueError("there must be a fetch and a step to simulate")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds per batch, contention for cores included.

    `step` is from ask to ask, `wait` the part of it until the batch is there; `fetch`, `compute` are what each took.
    """

    step: float
    wait: float
    fetch: float
    compute: float


def simulate(times: Times, setting: Setting, cores: Cores, *, num_batches: int, settle: int = 0) -> Outcome:
    """Return the means over `num_batches` batches after the first `settle`.

    The first ask finds nothing ready and all workers idle.
    """
    if num_batches < 1:
        raise ValueError(f"num_batches is {num_batches}; there must be one")
    if setting.num_workers == 0:
        return _without_workers(times, cores, num_batches, settle)
    loop = _Loop(times, setting, cores)
    loop.run(settle)
    before = loop.totals()
    loop.run(settle + num_batches)
    now, waited, fetching, fetched = (after - then for after, then in zip(loop.totals(), before, strict=True))
    # A worker is under way with a batch while it fetches and while it sends.
    mean_fetch = math.fsum(times.fetch) / len(times.fetch)
    share = mean_fetch / (mean_fetch + times.send) if mean_fetch else 0.0
    return Outcome(
        step=now / num_batches,
        wait=waited / num_batches,
        fetch=share * fetching / max(1, fetched),
        compute=(now - waited) / num_batches,
    )


def _without_workers(times: Times, cores: Cores, num_batches: int, settle: int) -> Outcome:
    def mean(seconds: Sequence[float]) -> float:
        return math.fsum(itertools.islice(itertools.cycle(seconds), settle, settle + num_batches)) / num_batches

    # The training thread takes the place of a worker.
    fetch, compute = mean(times.fetch) / cores.fetch_pace(1, 0.0), mean(times.compute) / cores.compute_pace(0)
    return Outcome(step=fetch + compute, wait=fetch, fetch=fetch, compute=compute)


class _Workers:
    """Who fetches what. All fetches go at one pace, so that one clock which runs at it times them all."""

    def __init__(self, times: Times, setting: Setting) -> None:
        self._fetch, self._send = times.fetch, times.send
        self._in_order = setting.in_order
        self.clock = 0.0
        # Ends, on that clock, of the fetches under way, the next one first.
        self.ends: list[tuple[float, int]] = []
        # Per worker: numbers of the batches that it is still to fetch, whether it fetches, and how many lie ready.
        sent = setting.num_workers * setting.prefetch_factor
        self._tasks = [deque(range(worker, sent, setting.num_workers)) for worker in range(setting.num_workers)]
        self._next = sent
        self._is_fetching = [True] * setting.num_workers
        self._ready = [0] * setting.num_workers
        self._came: deque[int] = deque()
        for worker, tasks in enumerate(self._tasks):
            heapq.heappush(self.ends, (self._end_of(tasks.popleft()), worker))

    def finish(self) -> None:
        """End the next fetch, and begin the next of the same worker if it has another task."""
        worker = self.ends[0][1]
        self._ready[worker] += 1
        if not self._in_order:
            self._came.append(worker)
        if tasks := self._tasks[worker]:
            heapq.heapreplace(self.ends, (self._end_of(tasks.popleft()), worker))
        else:
            heapq.heappop(self.ends)
            self._is_fetching[worker] = False

    def take(self, number: int) -> int | None:
        """Return the worker from which the training thread takes its batch of that number; None: it must wait."""
        if not self._in_order:
            return self._came.popleft() if self._came else None
        worker = number % len(self._ready)
        return worker if self._ready[worker] else None

    def hand_over(self, worker: int) -> None:
        """Note that a batch was taken; the worker gets another task for it."""
        self._ready[worker] -= 1
        if self._is_fetching[worker]:
            self._tasks[worker].append(self._next)
        else:  # it has no other
            heapq.heappush(self.ends, (self._end_of(self._next), worker))
            self._is_fetching[worker] = True
        self._next += 1

    def _end_of(self, batch: int) -> float:
        """Return when the fetch of a batch ends that begins now."""
        return self.clock + self._fetch[batch % len(self._fetch)] + self._send


class _Loop:
    """A training loop: ask, wait, receive, compute."""

    def __init__(self, times: Times, setting: Setting, cores: Cores) -> None:
        numbers = range(setting.num_workers + 1)
        self._waiting = [(cores.fetch_pace(n, 0.0), 1.0) for n in numbers]
        self._receiving = [(cores.fetch_pace(n, 1.0), cores.receive_pace(n)) for n in numbers]
        self._computing = [(cores.fetch_pace(n, cores.compute), cores.compute_pace(n)) for n in numbers]
        self._times = times
        self._workers = _Workers(times, setting)
        self._got = 0
        self._now = self._waited = self._fetching = 0.0
        self._fetched = 0

    def totals(self) -> tuple[float, float, float, int]:
        """Return the seconds gone, those waited for batches, those of all fetches together, and how many ended."""
        return self._now, self._waited, self._fetching, self._fetched

    def run(self, until: int) -> None:
        """Go on until so many batches were computed on."""
        take, receive, compute = self._workers.take, self._times.receive, self._times.compute
        for number in range(self._got, until):
            asked_at = self._now
            while (worker := take(number)) is None:
                self._spend(math.inf, self._waiting, until_fetched=True)
            self._spend(receive, self._receiving)
            self._workers.hand_over(worker)
            self._waited += self._now - asked_at
            self._spend(compute[number % len(compute)], self._computing)
        self._got = until

    def _spend(self, seconds: float, paces: Paces, *, until_fetched: bool = False) -> None:
        """Let the training thread work for so long, at full pace, or until a fetch ends, while the workers go on.

        Of two things that end at once the fetch is first: the training thread must find its batch. Most of the time of
        a simulation passes here, so that nothing is called that need not be.
        """
        workers, ends = self._workers, self._workers.ends
        while True:
            fetch_pace, pace = paces[len(ends)]
            fetched = (ends[0][0] - workers.clock) / fetch_pace if ends else math.inf
            is_done = seconds / pace < fetched
            took = seconds / pace if is_done else fetched
            self._now += took
            self._fetching += took * len(ends)
            workers.clock += took * fetch_pace
            if is_done:
                return
            workers.finish()
            self._fetched += 1
            if until_fetched:
                return
            seconds -= fetched * pace
