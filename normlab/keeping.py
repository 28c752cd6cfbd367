"""The exact mode's forward side: find the columns that an output does not give back, and keep their x̂.

    output, mean, invvar = layer_norm_forward(x, n2, weight, bias, eps)
    kept = keep_columns(x, mean, invvar, n2, weight, bias, eps)       # from here on x is not needed any more
    layer_norm_backward(grad_output, output, None, invvar, n2, weight, bias, eps, "exact", kept)

Which columns: `normlab.kernels.exact.risk`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from normlab import arguments, replay
from normlab.arrays import FLOATS, device_name, dtype_name, home_of, is_torch
from normlab.kernels.exact.choose import NEAR, launch_choice
from normlab.kernels.exact.keep import launch_keeping
from normlab.kernels.exact.risk import smallest_weight


class Kept(NamedTuple):
    """x̂ of the columns at risk.

    columns: (capacity,), int32: their numbers, ascending, then -1. values: (n1, capacity), the output's dtype; what
    stands in slots without a column is not determined.
    """

    columns: Any
    values: Any


def keep_columns(
    x: Any,
    mean: Any,
    invvar: Any,
    normalized_shape: SupportsIndex | Sequence[SupportsIndex],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    capacity: int | None = None,
    counts: Any = None,
) -> Kept:
    """Keep x̂ of the columns at risk, for a backward with memory_efficient="exact".

    Args:
        x, normalized_shape, weight, bias, eps: the forward's.
        mean, invvar: what the forward returned; mean is None for RMSNorm.
        capacity: room for so many columns. None: as many as there are, which waits for the GPU to count them. Columns
            at risk beyond the capacity are recomputed, as with memory_efficient=True.
        counts: (2,), int64, or None. Receives how many columns are at risk, plus 2^32 times how many are at risk or
            near it; and is increased by how many found no room. For a torch tensor on a GPU it may be a pinned one, to
            be read at any time.

    The gradients are right for every weight as long as the output is finite: of a value that was too large for its
    dtype nothing can be recomputed.

    Raises:
        ValueError: shapes that do not fit, a capacity below 0. TypeError: as the forward.
    """
    if capacity is not None and capacity < 0:
        raise ValueError(f"capacity must be at least 0, got {capacity}")
    key: tuple | None = None
    pointers: list[int] = []
    if capacity is not None:
        key, pointers = _signature(x, mean, invvar, normalized_shape, weight, bias, eps, counts, capacity)
        recording = replay.find(key)
        if recording:
            return Kept(*recording(pointers))

    home = home_of({"x": x, "invvar": invvar}, {"mean": mean, "weight": weight, "bias": bias})
    home = replay.recorded(home, key, pointers)
    shape = arguments.shape_of(normalized_shape)
    n1, n2 = arguments.rows_and_columns("x", x, shape)
    output_dtype = arguments.parameter_dtype("x", x, weight, bias)
    arguments.check_parameters(weight, bias, shape)
    leading = tuple(x.shape[: -len(shape)])
    statistics = arguments.statistics_dtype(dtype_name(x))
    arguments.check_statistics({"mean": mean, "invvar": invvar}, leading, statistics, "x")
    if counts is not None:
        arguments.check_shape("counts", counts, (2,), "numbers of columns")
        arguments.check_dtype("counts", counts, "int64", "numbers of columns")
        if device_name(x) != "cpu" and device_name(counts) != device_name(x) and not _is_pinned(counts):
            raise ValueError(
                f"counts must be on {device_name(x)}, as x, or in pinned memory, but is on {device_name(counts)}"
            )
    smallest = smallest_weight(arguments.rounded_eps(eps, statistics), output_dtype)

    rows = home.operand(x, (n1, n2)), home.operand(mean, (n1,)), home.operand(invvar, (n1,))
    parameters = home.operand(weight, (n2,)), home.operand(bias, (n2,))
    on_host = device_name(x) == "cpu"
    tally = home.zeros((2,), np.dtype(np.int64)) if counts is None or on_host else home.operand(counts, (2,))
    affine = weight is not None or bias is not None
    if not affine or not n1:
        capacity = 0
    elif capacity is None:
        nowhere, first = home.empty((0,), np.dtype(np.int32)), home.zeros((2,), np.dtype(np.int64))
        launch_choice(home.launch, n2, *parameters, smallest, nowhere, first)
        there = home.numbers(first)[0]
        capacity = there % NEAR
        if counts is not None:
            counts[0] = there  # which is known already: the second launch may take its time
    columns = home.empty((capacity,), np.dtype(np.int32))
    values = home.empty((n1, capacity), FLOATS[output_dtype])
    if affine and n1:
        launch_choice(home.launch, n2, *parameters, smallest, columns, tally)
    if capacity:
        launch_keeping(home.launch, *rows, columns, values)
    kept = Kept(home.give_back(columns, (capacity,)), home.give_back(values, (n1, capacity)))
    if counts is not None and on_host:
        there, without_room = home.numbers(tally)
        counts[0], counts[1] = there, counts[1] + without_room
    replay.keep(home)
    return kept


def asking(
    x: Any, mean: Any, invvar: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float, counts: Any
) -> Callable[[], None] | None:
    """Queues once more what a call of `keep_columns` with a capacity of 0 has: the GPU counts, and nothing is kept.

    None: no such call has been recorded. It does not look at x, mean and invvar, which may have gone, but reads the
    parameters and writes the counts where they lay.
    """
    key, pointers = _signature(x, mean, invvar, normalized_shape, weight, bias, eps, counts, 0)
    recording = replay.find(key)
    return None if recording is None else recording.again(pointers)


def _signature(
    x: Any, mean: Any, invvar: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, counts: Any, capacity: int
) -> tuple[tuple | None, list[int]]:
    return replay.signature((x, mean, invvar, weight, bias, counts), normalized_shape, eps, "keep", capacity)


def _is_pinned(array: Any) -> bool:
    return is_torch(array) and array.is_pinned()
