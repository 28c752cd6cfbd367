"""How far the x̂ of a batch spread: 1 where rows vary by much more than sqrt(eps), less where eps hides their spread.

A row's x̂ has the mean square var / (var + eps) = 1 - eps invvar², so the forward's invvar tells it without x.
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
SMALL = 2.0**-20  # below it 1 - eps invvar² has no digit left in float32


@cache
def build(dtype: Any) -> Any:
    """Return the kernel for an accumulator dtype."""

    @cuda.jit
    def measure_spread(invvar, eps, one, spread):
        """Write sqrt(mean of 1 - eps invvar²) of all rows into spread, (1,); rows with a NaN or an infinity are left
        out. Grid 1. invvar: (n1,), eps and one: scalars; all in accumulator precision.
        """
        buffer = cuda.shared.array((2, MAX_WARPS), dtype)
        squares = cast(0, spread)
        rows = cast(0, spread)
        row = cuda.threadIdx.x
        while row < invvar.shape[0]:
            value = load(invvar, row)
            square = one - eps * value * value
            if square >= -one:  # neither NaN nor minus infinity
                squares += max(square, cast(0, spread))
                rows += one
            row += cuda.blockDim.x
        squares, rows = block_sums(warp_sum_butterfly(squares), warp_sum_butterfly(rows), buffer)
        if cuda.threadIdx.x == 0:
            mean = max(squares, cast(SMALL, spread) * rows)
            if mean > cast(LARGE, spread) * rows or rows == cast(0, spread):
                store(spread, 0, one)
            else:
                store(spread, 0, cast(math.sqrt(mean / rows), spread))

    return measure_spread


def launch_spread(launch: Any, invvar: Any, eps: Any, spread: Any) -> Any:
    """Queue the kernel, or whatever else `launch` does with it. eps: a NumPy scalar in accumulator precision."""
    threads = min(MAX_THREADS, whole_warps(invvar.shape[0]))
    return launch(build(eps.dtype), 1, threads, invvar, eps, eps.dtype.type(1), spread)
