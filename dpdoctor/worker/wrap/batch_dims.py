"""Which dimension of what a model is called with is the batch's? Where it may not be the first, the model tells.

Layers know it (a recurrent layer, attention, a convolution), and so does what multiplies batches of matrices; an output
that has only one of two dimensions left has the batch's. Tokens as (time, batch) are not told from (batch, time) else.
Rows may be parts of samples: nodes of graphs, points, packed sequences. Or several views of them. Where nobody knows
what rows were made of, their values tell: of all others, those of the same sample are the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpdoctor.worker.base import structure
from dpdoctor.worker.timing.batches import MOST_VALUES, VIEWS, Rows, identity

# Of fewer rows it may be chance what whole numbers tell, such as classes; longer tensors of them are not asked.
LEAST_NUMBERED, MOST_NUMBERS = 16, 1 << 20
# Of rows that may resemble others so many are compared, and so many elements of each, evenly spread.
MOST_ROWS, MOST_ELEMENTS = 64, 512
# Of fewer rows it may be chance. Of others a share must resemble those in their place; by chance it is one of them all.
LEAST_ROWS, LEAST_ALIKE, LEAST_SHARE = 6, 8, 1 / 3
MOST_VIEWS, MOST_AXES = 8, 8
_INTEGERS = frozenset({torch.int64, torch.int32})
# No dimension is the batch's: a sample is several rows, or rows are views of samples.
_PARTS, _VIEWS = (None, True, 1), (None, True, 0)
# A model, and how many dimensions a tensor has, whether the first two are alike, of which nothing is told then, and
# whether it is of floating point numbers.
_Kind = tuple[int, int, bool, bool]


class BatchDims:
    """Remembers of each model which dimension was its batch's in its first forward on a tensor of the kind.

    Attributes:
        is_compiled: whether anything was: torch would compile it once more if it were looked inside of.
        met: where the first tensor of a kind lies, with some of its rows; to be cleared once an optimizer has stepped.
    """

    def __init__(self) -> None:
        self.is_compiled = False
        # By kind: the dimension, whether it is told, and how often each sample is there.
        self._found: dict[_Kind, tuple[int | None, bool, int]] = {}
        self.met: dict[_Kind, tuple[object, torch.Tensor]] = {}

    def something_is_compiled(self) -> None:
        """The script compiles a part of its training: only outputs tell from now on."""
        self.is_compiled = True

    def given(self, module: nn.Module, tensor: torch.Tensor, beside: Iterable[torch.Tensor] = ()) -> Given:
        """Return what is to be known of the tensor that a forward of the module begins with, and of those beside it."""
        shape = structure.shape(tensor)
        key = (id(module), len(shape), len(set(shape[:2])) < len(shape[:2]), tensor.is_floating_point())
        is_mapped = structure.is_mapped(tensor)
        given = Given(self, key, shape, identity(tensor), is_nested=tensor.is_nested, is_mapped=is_mapped)
        if self.is_new(given) and not tensor.is_nested:
            given.is_of_parts = any(_tells_of_parts(other, shape) for other in beside if other is not tensor)
            given.times = times_held(tensor)
        self._meet(given, tensor)
        return given

    def _meet(self, given: Given, tensor: torch.Tensor) -> None:
        """Look whether the second tensor of a kind before an optimizer steps holds views of the first one's samples."""
        place, before = self.met.pop(given.key, (None, None))
        rows = some_rows(tensor) if before is not None or self.is_new(given) else None
        if rows is None:
            return
        if before is None:
            self.met[given.key] = given.place, rows
        elif place != given.place and are_alike(before, rows):
            self._found[given.key] = _VIEWS

    def is_new(self, given: Given) -> bool:
        """Return whether the forward that begins is to be looked at."""
        return given.key not in self._found and not given.is_mapped

    def note(self, given: Given, sizes: set[int]) -> None:
        """Remember what a forward told: what it takes for sizes of its batch."""
        dim, is_told = _dim(given, sizes)
        found = (dim, is_told, given.times if dim == 0 else 1)
        self._found[given.key] = _PARTS if given.is_of_parts else found if found[-1] else _VIEWS

    def rows(self, given: Given) -> Rows | None:
        """Return the samples of a forward's first tensor, 0 where rows are parts of some; None where nothing tells."""
        if given.is_mapped:  # it has the shape of one sample
            return None
        dim, is_told, times = found = self._found.get(given.key, (*_dim(given, set()), 1))
        if found == _VIEWS:
            return Rows(0, is_told=True, unknown=VIEWS)
        if dim is None:
            return Rows(0, is_told=True) if found == _PARTS else None
        return Rows(given.shape[dim] // times, dim, is_told, times)


class Given:
    """What is known of the first tensor that a forward is called with.

    Attributes:
        place: tells it from others.
        is_of_parts: whether its rows are known to be parts of samples.
        times: how often it holds each of its rows, as times_held has it.
    """

    def __init__(
        self,
        dims: BatchDims,
        key: _Kind,
        shape: Sequence[int],
        place: object,
        *,
        is_nested: bool,
        is_mapped: bool = False,
    ) -> None:
        self._dims = dims
        self.key = key
        self.shape = shape
        self.place = place
        self.is_nested, self.is_mapped = is_nested, is_mapped
        self.is_of_parts = False
        self.times = 1
        self._layers: _Layers | None = None

    def looking(self) -> AbstractContextManager[Any]:
        """Look at what the forward does inside of this, where that is not known yet."""
        if not self._dims.is_new(self):
            return nullcontext()
        self._layers = _Layers()
        return nullcontext() if self._dims.is_compiled else self._layers

    def returned(self, output: Any) -> None:
        """The forward that was looked at returned this."""
        if self._layers is not None:
            self.is_of_parts |= _has_other_rows(self, output)
            self._dims.note(self, self._layers.sizes | set(_of_output(self.shape, output)))
            self._layers = None

    def rows(self) -> Rows | None:
        """Return its samples, as far as is known now; None where nothing tells."""
        return self._dims.rows(self)


def _dim(given: Given, sizes: set[int]) -> tuple[int | None, bool]:
    """Return which dimension is the batch's, None where nothing tells, and whether `sizes` tell that."""
    first, *others = given.shape
    is_first = first in sizes
    if given.is_nested:
        return 0, True
    if first == 1 and not others:
        return (0, True) if sizes <= {1} else (None, False)
    if not others:
        return (0, True) if sizes == {first} else (None, False)
    second = others[0]
    is_second = second in sizes
    if first == second or (is_first and not is_second):
        return 0, is_first
    is_only_second = is_second and not is_first
    is_of_float = given.key[-1]
    # Rows of features, and images.
    if (len(given.shape) == 2 and is_of_float) or len(given.shape) > 3:
        return (None, False) if is_only_second and second > 1 else (0, False)
    return (1, True) if is_only_second else (None, False)


def _of_output(shape: Sequence[int], output: Any) -> Iterator[int]:
    """Yield sizes of dimensions that outputs have kept first, and of which they have not kept the other one.

    One of size 1 is none that they must have summed over: it may have been squeezed away.
    """
    first, *others = shape[:2]
    pairs = [(first, others), *((other, [first]) for other in others)]
    for kept in filter(None, map(structure.shape, structure.tensors(output, MOST_VALUES))):
        if tuple(shape) == (1,) and len(kept) > 1:  # one number may be of one sample, or for all of them
            yield kept[0]
        for size, left in pairs:
            if kept[0] == size and all(other > 1 and other not in kept for other in left):
                yield size


def _has_other_rows(given: Given, output: Any) -> bool:
    """Return whether a model that is called with rows returns others to be trained on: one for each graph, say.

    Several for each are none; nor is a loss.
    """
    rows, *others = given.shape
    if not rows or given.is_nested or len(others) > 1 or (others and not given.key[-1]):
        return False
    shapes = [structure.shape(t) for t in structure.tensors(output, MOST_VALUES) if t.requires_grad]
    return bool(shapes) and all(math.prod(shape) > 1 and rows not in shape and shape[0] % rows for shape in shapes)


def _tells_of_parts(numbers: torch.Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor of whole numbers tells which rows of another, of this shape, are of one sample."""
    is_one_row = shape[0] == 1 < len(shape)
    rows = shape[1] if is_one_row else shape[0]
    if len(shape) > 3 or rows < LEAST_NUMBERED or numbers.dtype not in _INTEGERS or not structure.is_dense(numbers):
        return False
    is_row = numbers.dim() == 1 or (is_one_row and tuple(numbers.shape) == (1, rows))
    if not is_row or not 1 < numbers.numel() <= min(rows + 1, MOST_NUMBERS):
        return False
    with suppress(RuntimeError, NotImplementedError):  # it may have no values
        # In the shape of one row zeros and ones are its mask, padded on the left, or the two segments of a text.
        is_mask = numbers.dim() > 1 and int(numbers.max()) == 1
        return not is_mask and _divide(numbers.flatten().long(), rows)
    return False


def _divide(numbers: torch.Tensor, rows: int) -> bool:
    """Return whether numbers are where samples of so many rows begin or end, or how many rows each of them has.

    Or they are the number of each row's sample, or the row's place in it.
    """
    steps = numbers.diff()
    if len(numbers) != rows:
        are_ends = int(numbers[-1]) == rows and bool((steps > 0).all()) and bool((steps > 1).any())
        return are_ends or (len(numbers) < rows == int(numbers.sum()) and bool((numbers > 0).all()))
    begins = numbers == 0
    are_samples = bool(((steps == 0) | (steps == 1)).all()) and 0 < int(numbers[-1]) < rows - 1
    are_places = bool(((steps == 1) | begins[1:]).all()) and int(numbers.max()) > 1 and int(begins.sum()) > 1
    return bool(begins[0]) and (are_samples or are_places)


def _are_comparable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has rows of values."""
    is_plain = type(tensor) is torch.Tensor and structure.is_dense(tensor) and not structure.is_mapped(tensor)
    return is_plain and tensor.dim() > 1 and tensor.numel() > 0 and not (tensor.is_complex() or tensor.is_meta)


def some_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a copy of some rows as a matrix; None: there are too few, or they cannot be compared."""
    if not _are_comparable(tensor) or len(tensor) < LEAST_ROWS:
        return None
    rows = tensor.detach()[:: max(1, len(tensor) // MOST_ROWS)].flatten(1)
    return rows[:, :: max(1, rows.shape[1] // MOST_ELEMENTS)].to(torch.float32, copy=True)


def are_alike(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether rows resemble others in their place: as they are, or in the values that they hold.

    The latter do, where an image was turned, or moved.
    """
    if some.shape != others.shape:
        return False
    return _resemble(some, others) or _resemble(some.sort().values, others.sort().values)


def _resemble(some: torch.Tensor, others: torch.Tensor) -> bool:
    distances = torch.cdist(some, others, p=1)
    own = distances.diagonal().clone()
    distances.fill_diagonal_(torch.inf)
    num_alike = int((own < distances.min(1).values).sum())
    return num_alike >= max(min(LEAST_ALIKE, len(some)), LEAST_SHARE * len(some))


def times_held(tensor: torch.Tensor) -> int:
    """Return how often a tensor holds each row, one block of them after the other; 0: blocks that are only alike."""
    if not _are_comparable(tensor):
        return 1
    rows = tensor.detach()
    once = _once(rows)
    numbers = [number for number in range(2, MOST_VIEWS + 1) if len(once) % number == 0]
    has_views = any(_is_alike_next(once, len(once) // number) for number in numbers)
    return 0 if has_views and not _is_grid(once) else len(rows) // len(once)


def _once(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows before they begin anew; all where they never do, or where many of one block are alike."""
    num_rows = len(rows)
    for length in range(LEAST_ROWS, num_rows // 2 + 1):
        is_block = num_rows % length == 0 and torch.equal(rows[0], rows[length])
        if is_block and torch.equal(rows[length:], rows[:-length]):
            return rows[:length] if _is_alike_next(rows, length) else rows
    return rows


def _is_alike_next(rows: torch.Tensor, length: int) -> bool:
    """Return whether the first rows, so many, and the next ones resemble each other."""
    some, others = some_rows(rows[:length]), some_rows(rows[length : 2 * length])
    return some is not None and others is not None and are_alike(some, others)


def _is_grid(rows: torch.Tensor) -> bool:
    """Return whether rows are all points of a grid, of which those along one axis lie next to each other."""
    columns = rows.flatten(1)
    if columns.shape[1] > MOST_AXES:
        return False
    sizes = [len(column.unique()) for column in columns.T]
    return max(sizes) < len(rows) == math.prod(sizes)


class _Layers(TorchFunctionMode):
    """Collects while it is entered the sizes of what torch's functions are told to be batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        size_of = _SIZES.get(getattr(function, "__name__", ""))
        if size_of is not None:
            # Functions of these names may be called in more ways than are known here.
            with suppress(IndexError, TypeError, AttributeError, ValueError, KeyError, RuntimeError):
                self.sizes.update(size_of(result, args, kwargs or {}))
        return result


def _recurrent(_: Any, args: tuple[Any, ...], __: Any) -> Iterable[int]:
    data, second = args[:2]
    if isinstance(second, torch.Tensor) and second.dim() == 1:  # packed: how many sequences go on at each time
        return (int(second[0]),)
    batch_first = args[-1]
    return (data.shape[0 if batch_first else 1],) if data.dim() == 3 else ()


def _rows(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, least: int = 2) -> Iterable[int]:
    data = args[0] if args else kwargs["input"]
    return (data.shape[0],) if data.dim() >= least else ()


def _linear(_: Any, args: tuple[Any, ...], __: Any) -> Iterable[int]:
    return (1,) if args[0].dim() == 1 else ()  # the features of one sample


def _convolution(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[int]:
    data, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
    return (data.shape[0],) if data.dim() == weight.dim() else ()


def _attention(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[int]:
    query = args[0] if args else kwargs["query"]
    return (query.shape[0],) if query.dim() >= 3 else ()


def _attention_by_time(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[int]:
    query = args[0] if args else kwargs["query"]
    return (query.shape[1],) if query.dim() == 3 else ()


def _matrices(result: torch.Tensor, args: tuple[Any, ...], _: Any) -> Iterable[int]:
    is_batch = all(part.dim() >= 3 and not isinstance(part, nn.Parameter) for part in args[:2])
    return (result.shape[0],) if is_batch else ()


def _einsum(result: torch.Tensor, args: tuple[Any, ...], _: Any) -> Iterable[int]:
    inputs, _, output = args[0].replace(" ", "").partition("->")
    operands = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
    is_batch = len(operands) > 1 and all(part.dim() >= 3 and not isinstance(part, nn.Parameter) for part in operands)
    return (result.shape[0],) if is_batch and all(output[0] in part for part in inputs.split(",")) else ()


def _flattened(result: torch.Tensor, args: tuple[Any, ...], _: Any) -> Iterable[int]:
    data = args[0]
    is_flat = data.dim() > 2 == result.dim() and sum(size > 1 for size in data.shape[1:]) > 1
    return (data.shape[0],) if is_flat and data.shape[0] == result.shape[0] else ()


_SIZES: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], Iterable[int]]] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _rows),
    **{f"conv{transposed}{n}d": _convolution for transposed in ("", "_transpose") for n in (1, 2, 3)},
    **dict.fromkeys(("batch_norm", "group_norm", "instance_norm"), _rows),
    **dict.fromkeys(("matmul", "__matmul__", "bmm"), _matrices),
    **dict.fromkeys(("flatten", "view", "reshape"), _flattened),
    "einsum": _einsum,
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _attention_by_time,
}
