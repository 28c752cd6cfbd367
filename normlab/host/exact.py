"""The exact mode's forward side: find the columns that cannot be recomputed from the output, and keep their x̂.

    output, mean, invvar = layer_norm_forward(x, n2, weight, bias, eps=eps)
    kept = keep_columns(x, mean, invvar, n2, weight, bias, eps=eps)       # the backward does not need x after this
    options = {"eps": eps, "memory_efficient": "exact", "kept": kept}
    layer_norm_backward(grad_output, output, None, invvar, n2, weight, bias, **options)

`normlab.kernels.exact.risk` says which columns these are.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from normlab.host import checks, replay
from normlab.host.arrays import FLOATS, Backend, backend_of, dtype_name
from normlab.kernels.exact.choose import launch_choice
from normlab.kernels.exact.keep import launch_keeping
from normlab.kernels.exact.risk import limits
from normlab.kernels.exact.spread import launch_spread


class Kept(NamedTuple):
    """x̂ of the columns at risk.

    columns: (capacity,), int32: the columns' numbers, ascending. Slots without a column, if any, come last and hold -1.
    values: (n1, capacity), the output's dtype. Values in slots without a column are undefined.
    """

    columns: Any
    values: Any


@checks.positional("eps")
def keep_columns(
    x: Any,
    mean: Any,
    invvar: Any,
    normalized_shape: SupportsIndex | Sequence[SupportsIndex],
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    columns: Any = None,
) -> Kept:
    """Return x̂ of the columns at risk, for a backward with memory_efficient="exact".

    Args:
        x, normalized_shape, weight, bias, eps: the forward's arguments.
        mean, invvar: the forward's results; mean is None for RMSNorm.
        columns: (capacity,), int32: the columns to keep, if they are known already, as in `Kept`. None: find them; the
            host then waits for the GPU to count them.

    The gradients are right for every weight if the output is finite: a value that was too large for the output's dtype
    cannot be recomputed.

    Raises:
        ValueError: shapes that do not fit. TypeError: as the forward.
    """
    key: tuple | None = None
    pointers: list[int] = []
    if columns is not None:
        given = x, mean, invvar, weight, bias, columns
        key, pointers = replay.signature(given, normalized_shape, eps, "keep")
        cached = replay.find(key)
        if cached:
            return Kept(columns, *cached(pointers))

    backend = backend_of({"x": x, "invvar": invvar}, {"mean": mean, "weight": weight, "bias": bias, "columns": columns})
    backend = replay.caching(backend, key, pointers)
    shape = checks.shape_of(normalized_shape)
    n1, n2 = checks.rows_and_columns("x", x, shape)
    output_dtype = checks.parameter_dtype("x", x, weight, bias)
    checks.check_parameters(weight, bias, shape)
    leading = tuple(x.shape[: -len(shape)])
    statistics = checks.statistics_dtype(dtype_name(x))
    checks.check_statistics({"mean": mean, "invvar": invvar}, leading, statistics, "x")
    if columns is not None:
        checks.check_dtype("columns", columns, "int32", "column numbers")
        checks.check_shape("columns", columns, (prod(columns.shape),), "column numbers")
    eps = checks.rounded_eps(eps, statistics)

    rows = backend.operand(x, (n1, n2)), backend.operand(mean, (n1,)), backend.operand(invvar, (n1,))
    parameters = backend.operand(weight, (n2,)), backend.operand(bias, (n2,))
    if columns is None:
        wanted = _columns_at_risk(backend, n2, *parameters, rows[2], eps, output_dtype)
    else:
        wanted = backend.operand(columns, tuple(columns.shape))
    values = backend.empty((n1, wanted.shape[0]), FLOATS[output_dtype])
    if n1 and wanted.shape[0]:
        launch_keeping(backend.launch, *rows, wanted, values)
    if columns is None:
        columns = backend.give_back(wanted, wanted.shape)
    return Kept(columns, *replay.keep(backend, (values, values.shape)))


def find_columns(invvar: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float, output: Any) -> Any:
    """Return the numbers of the columns at risk, (count,), int32. Waits for the GPU.

    Args: as for `keep_columns`; output: the forward's result.
    """
    backend = backend_of({"invvar": invvar}, {"weight": weight, "bias": bias})
    _, n2 = checks.rows_and_columns("output", output, checks.shape_of(normalized_shape))
    parameters = backend.operand(weight, (n2,)), backend.operand(bias, (n2,))
    eps = checks.rounded_eps(eps, dtype_name(invvar))
    rows = backend.operand(invvar, (prod(invvar.shape),))
    found = _columns_at_risk(backend, n2, *parameters, rows, eps, dtype_name(output))
    return backend.give_back(found, found.shape)


def _columns_at_risk(
    backend: Backend, n2: int, weight: Any, bias: Any, invvar: Any, eps: Any, output_dtype: str
) -> Any:
    """Return the numbers of the columns at risk, (count,), int32. Waits for the GPU."""
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    if (weight is None and bias is None) or not invvar.shape[0]:
        return backend.empty((0,), int32)
    spread, counts = backend.empty((1,), eps.dtype), backend.zeros((3,), int64)
    launch_spread(backend.launch, invvar, eps, spread)
    bounds = limits(eps, output_dtype)
    launch_choice(backend.launch, n2, weight, bias, spread, bounds, backend.empty((0,), int32), counts)  # only counts
    columns = backend.empty((backend.numbers(counts)[0],), int32)
    if columns.shape[0]:
        launch_choice(backend.launch, n2, weight, bias, spread, bounds, columns, counts)
    return columns
