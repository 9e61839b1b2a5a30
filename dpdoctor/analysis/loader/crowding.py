"""How much a fetch and the training slow each other beyond sharing cores, as it was tried inside of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpdoctor.analysis.loader.sharing import Cores
from dpdoctor.analysis.windows import NS, Window, measured
from dpdoctor.records import Launch

ALONE, BESIDE = "cached_batches", "beside_fetching"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowding:
    """Factors, 1 or more, by which a fetch and what the training thread does last longer beside the other.

    Caches and memory, and cores that are two threads of one, do that; time without a core of one's own is not in it.
    """

    fetch: float = 1.0
    compute: float = 1.0


def crowding(launch: Launch, number: int, fetch_s: float, cores: Cores) -> Crowding:
    """Return what the arm that fetches beside the training shows of loader `number`; none where it did not run.

    `fetch_s` is what a fetch takes in the training thread, alone.
    """
    alone, beside = (_by_round(measured(launch, arm=arm)) for arm in (ALONE, BESIDE))
    rounds = alone.keys() & beside.keys()
    records = [one for rank in launch.ranks if rank.record for one in rank.record.beside]
    fetches_s = [one.fetch_ns * NS for one in records if one.loader == number]
    if not rounds or not fetches_s or fetch_s <= 0:
        return Crowding()
    compute = _seconds(beside, rounds) / _seconds(alone, rounds)
    return Crowding(
        fetch=max(1.0, fmean(fetches_s) / fetch_s * cores.fetch_pace(1, cores.compute)),
        compute=max(1.0, compute * cores.compute_pace(1)),
    )


def _seconds(windows: Mapping[int, Window], rounds: Iterable[int]) -> float:
    return fmean(windows[number].seconds_per_step for number in rounds)


def _by_round(windows: Sequence[Window]) -> dict[int, Window]:
    return {window.round: window for window in windows}
