"""What malloc has given out in this process."""

from __future__ import annotations

import ctypes

import pytest


class _Mallinfo(ctypes.Structure):
    """Ten numbers, of which the fifth and the eighth are the bytes of mapped blocks and of those in the heap."""

    _fields_ = [("numbers", ctypes.c_size_t * 10)]


def taken() -> int:
    """Return the bytes that glibc's malloc has given out; other C libraries do not tell, and the test is skipped."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("this C library is not glibc 2.33 or newer")
    mallinfo.restype = _Mallinfo
    numbers = mallinfo().numbers
    return int(numbers[4] + numbers[7])
