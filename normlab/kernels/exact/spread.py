"""Measure the spread of a batch's x̂: 1 where rows vary by much more than sqrt(eps), less where eps hides how they vary.

The x̂ of a row have the mean square var / (var + eps) = 1 - eps invvar², so the forward's invvar gives it without x.
The spread is the square root of the mean over all rows. `risk` compares beta with it.
"""

import math
from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load, store
from normlab.stages.block import block_sums
from normlab.stages.vector import whole_warps
from normlab.stages.warp import warp_sum_butterfly

MAX_THREADS = 512
MAX_WARPS = MAX_THREADS // 32
LARGE = 0.25  # a mean square above this counts as 1, so that columns at risk do not change from batch to batch
SMALL = 2.0**-20  # a mean square below this counts as this: 1 - eps invvar² has no digit left in float32


@cache
def build(dtype: Any) -> Any:
    """Return the kernel for an accumulator dtype."""

    @cuda.jit
    def measure_spread(invvar, eps, one, spread):
        """Write sqrt(mean of 1 - eps invvar²) of all rows to spread, (1,), with the limits LARGE and SMALL.

        Rows whose invvar is NaN or infinite are left out; if no row remains, the spread is 1. Grid 1: one block takes
        all rows. invvar: (n1,), eps and one: scalars; all in accumulator precision.
        """
        # Each thread: its rows' mean squares, and how many rows count.
        buffer = cuda.shared.array((2, MAX_WARPS), dtype)
        squares = cast(0, spread)
        rows = cast(0, spread)
        row = cuda.threadIdx.x
        while row < invvar.shape[0]:
            value = load(invvar, row)
            square = one - eps * value * value
            if square >= -one:  # false for NaN and minus infinity; a rounding below 0 counts as 0
                squares += max(square, cast(0, spread))
                rows += one
            row += cuda.blockDim.x

        # The block's two sums; thread 0 compares the mean with both limits, multiplied by the number of rows.
        squares, rows = block_sums(warp_sum_butterfly(squares), warp_sum_butterfly(rows), buffer)
        if cuda.threadIdx.x == 0:
            mean = max(squares, cast(SMALL, spread) * rows)
            if mean > cast(LARGE, spread) * rows or rows == cast(0, spread):
                store(spread, 0, one)
            else:
                store(spread, 0, cast(math.sqrt(mean / rows), spread))

    return measure_spread


def launch_spread(launch: Any, invvar: Any, eps: Any, spread: Any) -> Any:
    """Call `launch` with the kernel, one block and its arguments; return the result of that call.

    eps: a NumPy scalar in accumulator precision.
    """
    threads = min(MAX_THREADS, whole_warps(invvar.shape[0]))
    return launch(build(eps.dtype), 1, threads, invvar, eps, eps.dtype.type(1), spread)
