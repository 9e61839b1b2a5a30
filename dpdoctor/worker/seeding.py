"""Random numbers: alike on every rank at first, and which of them the script seeds by itself."""

from __future__ import annotations

import functools
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from dpdoctor.worker.base.patches import Patches

_OURS = ("torch", "numpy", "dpdoctor")


def seed_all(seed: int) -> None:
    """Seed torch, numpy and random, alike on every rank and in every mode."""
    for sow in _SOWERS.values():
        sow(seed)


_seed_numpy = np.random.seed  # the original, as those below: a script's calls are noted, dpdoctor's are not


def _sow_numpy(seed: int) -> None:
    _seed_numpy(seed % 2**32)


_SOWERS: dict[str, Callable[[int], object]] = {
    "torch": torch.manual_seed,
    "numpy": _sow_numpy,
    "random": random.seed,
}


def _torch_state() -> list[bytes]:
    on_device = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_device)]


_STATES: dict[str, Callable[[], object]] = {
    "torch": _torch_state,
    "numpy": np.random.get_state,
    "random": random.getstate,
}


class Seeding:
    """Knows the generators that the script seeds.

    Those that it does not seed are seeded by dpdoctor, so that every mode begins with the same model; processes of the
    script's own would draw apart from them.

    Attributes:
        is_apart: whether ranks draw numbers of their own from some.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._by_script: set[str] = set()
        self._at_first: dict[str, int] = {}
        self.is_apart = False

    def watch(self, patches: Patches) -> None:
        """Note which generators the script seeds from now on."""
        self._at_first = _digests(_SOWERS)
        for name, owner, attribute in (
            ("torch", torch, "manual_seed"),
            ("numpy", np.random, "seed"),
            ("random", random, "seed"),
        ):
            patches.replace(owner, attribute, self._noting(name, getattr(owner, attribute)))

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            if name not in self._by_script and not _is_ours(sys._getframe(1).f_globals.get("__name__", "")):
                self._by_script.add(name)
            return original(*args, **kwargs)

        return seed

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Return the modules whose numbers are alike on all ranks only because dpdoctor seeded them."""
        return tuple(name for name in _SOWERS if name not in self._by_script)

    def states(self) -> dict[str, int]:
        """Return digests of the states of the generators that the script seeds; ranks that drew alike have the same."""
        return _digests(sorted(self._by_script))

    def used(self) -> tuple[str, ...]:
        """Return what of `unseeded` has been drawn from."""
        return tuple(name for name, state in _digests(self.unseeded).items() if state != self._at_first.get(name))

    def draw_apart(self, names: tuple[str, ...] = tuple(_SOWERS)) -> None:
        """Let this rank draw numbers of its own from these generators from now on."""
        self.is_apart = True
        seed = (torch.initial_seed() + self._rank) % 2**64  # torch has that of -1 as 2**64 - 1
        for name in names:
            _SOWERS[name](seed)


def _digests(names: Iterable[str]) -> dict[str, int]:
    return {name: zlib.crc32(pickle.dumps(_STATES[name]())) for name in names}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS
