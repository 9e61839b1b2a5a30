"""Bytes of tensors, from how exporters write their shapes and types."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dpdoctor.trace.events import plain

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


def of_elements(count: Any, dtype: str | None) -> int | None:
    """Return the bytes of so many elements; None: the count or the type is not known."""
    item = ITEM_BYTES.get(str(dtype).lower())
    return _possible(count * item) if isinstance(count, int) and item is not None else None


def of_inputs(dims: msgspec.Raw, types: msgspec.Raw) -> int | None:
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
