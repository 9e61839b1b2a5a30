"""What exporters write into arguments and headers, of any type or not at all: numbers, lists and bytes of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.document import UNDECODABLE
from dpdoctor.trace.model import UNKNOWN

_INT64 = np.iinfo(np.int64)


def plain(raw: msgspec.Raw | bytes) -> Any:
    """Return what was left undecoded as lists, texts and numbers; None: nothing, or not decodable."""
    try:
        return msgspec.json.decode(raw) if raw else None
    except UNDECODABLE:
        return None


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return int64[n], UNKNOWN where there is no number; quick for what nearly all files hold."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (ValueError, OverflowError, TypeError):
        return np.fromiter(map(integer, values), np.int64, len(values))


def integer(value: Any) -> int:
    """Return a number, or the number that a text writes, decimal or hexadecimal; UNKNOWN for anything else."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError, TypeError):
        return UNKNOWN
    return number if _INT64.min <= number <= _INT64.max else UNKNOWN


def nanoseconds(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return microseconds in ns; whole microseconds of unix time stay exact, which a float product would not keep."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1e3).astype(np.int64)


def whole_numbers(value: object) -> tuple[int, ...]:
    """Return a list's numbers; empty for anything else than a list of whole numbers."""
    if not isinstance(value, list) or not all(is_whole(item) for item in value):
        return ()
    return tuple(value)


def is_whole(value: object) -> bool:
    """Return whether this is a whole number of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and _INT64.min <= value <= _INT64.max


# Names of element types, in lower case: C++ types in "Input type", names of ScalarType in NCCL's metadata.
ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "half": 2,
    "bfloat16": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "char": 1,
    "byte": 1,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "complexfloat": 8,
    "complexdouble": 16,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
_MAX_BYTES = 1 << 60  # more is no tensor but a damaged file


def bytes_of_elements(count: Any, dtype: str | None) -> int | None:
    """Return the bytes of so many elements; None: the count or the type is not known."""
    item = ITEM_BYTES.get(str(dtype).lower())
    return _possible(count * item) if isinstance(count, int) and item is not None else None


def bytes_of_inputs(dims: msgspec.Raw, types: msgspec.Raw) -> int | None:
    """Return the bytes of all tensors among an operator's inputs; None: there is none whose type is known."""
    shapes, names = plain(dims), plain(types)
    if not isinstance(shapes, list) or not isinstance(names, list):
        return None
    return _possible(sum(_of_input(shape, name) for shape, name in zip(shapes, names, strict=False))) or None


def _of_input(shape: Any, name: Any) -> int:
    """A list of tensors has a list of shapes, and a list of types or one name."""
    if isinstance(shape, list) and shape and all(isinstance(part, list) for part in shape):
        names = name if isinstance(name, list) else [name] * len(shape)
        return sum(_of_tensor(part, kind) for part, kind in zip(shape, names, strict=False))
    return _of_tensor(shape, name)


def _of_tensor(shape: Any, name: Any) -> int:
    item = ITEM_BYTES.get(str(name).lower())
    if item is None or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return 0
    return math.prod(shape) * item


def _possible(num_bytes: int) -> int | None:
    return num_bytes if 0 <= num_bytes <= _MAX_BYTES else None
