"""The module posix as it was, for the overlay itself: the script's has other functions in it."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import posix as posix  # noqa: PLC0414 - it is given on
else:
    import posix as _posix

    posix = types.SimpleNamespace(**vars(_posix))
