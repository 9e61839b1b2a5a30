"""A look into chains of transforms: how long each entry takes, without changing an entry.

While a look is open, the list that holds the entries is exchanged for one that is like it in every respect, but
takes the time between handing out an entry and being asked for the next: whoever loops over it calls the entry then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dpdoctor.worker.data.chains import Chain


class Look:
    """Times the entries of chains while it is open. `totals_ns` has one element for each entry of each chain, in order,
    and `num_calls` says how many calls were timed in the last look.

    Times are exclusive: of an entry that is itself a chain only what its own entries do not take.
    """

    def __init__(self, chains: Sequence[Chain], clock: Callable[[], int]) -> None:
        self._chains = chains
        self._clock = clock
        self._exchanged: list[tuple[Chain, Any, Any]] = []
        self._thread = 0
        self._turn = 0
        self._claimed_ns = 0
        self._firsts = [sum(len(chain.entries) for chain in chains[:index]) for index in range(len(chains))]
        self.totals_ns: list[int] = []
        self.num_calls = 0
        self.is_open = False

    def open(self) -> None:
        """Begin to time, from 0 on."""
        self.is_open = True
        self._turn += 1
        self._claimed_ns = self.num_calls = 0
        self._thread = threading.get_ident()
        self.totals_ns = [0] * sum(len(chain.entries) for chain in self._chains)
        for chain, first in zip(self._chains, self._firsts, strict=True):
            held = chain.held()
            if held is not None:
                timed = (_TimedList if type(held) is list else _TimedTuple)(held)
                timed.look, timed.first = self, first
                chain.attributes[chain.name] = timed
                self._exchanged.append((chain, held, timed))

    def close(self) -> None:
        """Stop timing and put the script's own lists back; nothing happens when it is closed."""
        self.is_open = False
        self._turn += 1
        while self._exchanged:
            chain, held, timed = self._exchanged.pop()
            # The script may have changed the list, or put another in its place, while it was looked at.
            if chain.attributes.get(chain.name) is timed:
                chain.attributes[chain.name] = held
            if type(held) is list and held != timed:
                held[:] = timed[:]

    def timed(self, entries: Iterator[Any], first: int) -> Iterator[Any]:
        """Hand out the entries of a chain and take the time until the next one is asked for."""
        if self._thread != threading.get_ident():
            yield from entries
            return
        turn = self._turn
        for position, entry in enumerate(entries, first):
            claimed_ns, begin_ns = self._claimed_ns, self._clock()
            yield entry
            if turn == self._turn and position < len(self.totals_ns):
                own_ns = self._clock() - begin_ns - (self._claimed_ns - claimed_ns)
                self.totals_ns[position] += own_ns
                self._claimed_ns += own_ns
                self.num_calls += 1


class _TimedList(list[Any]):
    look: Look
    first: int

    def __iter__(self) -> Iterator[Any]:
        return self.look.timed(list.__iter__(self), self.first)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (self[:],)


class _TimedTuple(tuple[Any, ...]):
    look: Look
    first: int

    def __iter__(self) -> Iterator[Any]:
        return self.look.timed(tuple.__iter__(self), self.first)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return tuple, (self[:],)
