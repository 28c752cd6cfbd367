"""Normalise sets that are rows of memory in one kernel: instance and group norm with channels first.

Idea: a set of up to 32768 values is contiguous, and a block's registers hold it for two passes. A set of one warp needs
no barrier and shares its block with others.
Moves: x once, the output once; `planes` reads x twice.
Bound by: memory.
Measured: record family_h200, and the site's speed pages.
"""

import math
from functools import cache

import numpy as np

from normlab.engine import accumulator, cast, cuda, float32, store, store_vector_from
from normlab.kernels.family.operands import Outputs
from normlab.kernels.family.sets import Sets
from normlab.kernels.plan import GRID_LIMIT, reshaped
from normlab.stages.block import block_sum
from normlab.stages.recompute import affine, element, normalised_from_input
from normlab.stages.vector import ThreadMap, map_threads, row_loader, whole_warps, widest
from normlab.stages.warp import warp_sum_butterfly

ELEMENTS = 16  # per thread, unless that takes more than MAX_THREADS
MOST_ELEMENTS = 32  # per thread, with MAX_THREADS
MAX_THREADS = 1024
SHARED_BLOCK = 4  # sets per block, if a set has one warp


def thread_map_for(sets: Sets, width: int) -> ThreadMap | None:
    """Return the thread map of a set; None if it is not contiguous or too long."""
    if sets.run == 1 or sets.outer > 1:
        return None
    thread_map = map_threads(sets.values, width, min(MAX_THREADS, whole_warps(-(-sets.values // ELEMENTS))))
    return thread_map if thread_map.elements <= MOST_ELEMENTS else None


@cache
def build(dtype, thread_map: ThreadMap, rows: int):
    """Return the kernel `family_rows`. Block: (threads of a row, rows); rows is 1 where a set has several warps."""
    vectors, width, span, _ = thread_map.loop
    elements, warps, filled = thread_map.elements, thread_map.warps, thread_map.filled
    load_row = row_loader(thread_map)

    @cuda.jit(launch_bounds=(thread_map.threads * rows, 1))
    def family_rows(x, weight, bias, eps, groups, run, mean, invvar, output):
        buffer = cuda.shared.array((2, warps), dtype)
        values = cuda.local.array(elements, dtype)
        n2 = x.shape[1]
        first = cuda.threadIdx.x * width
        row = cuda.blockIdx.x * rows + cuda.threadIdx.y
        live = row < x.shape[0]  # False in whole warps of the last block, where a set of one warp has no barrier

        # Fetch: the whole set goes to registers.
        for k in range(elements):
            values[k] = cast(0, buffer)
        if live:
            load_row(values, x, row, first)

        # First pass, over registers: the mean. Absent values are 0.
        total = cast(0, buffer)
        for k in range(elements):
            total += values[k]
        total = warp_sum_butterfly(total)
        if warps > 1:
            total = block_sum(total, buffer)
        center = total / cast(n2, buffer)

        # Second pass, over registers: the squared deviations.
        square_sum = cast(0, buffer)
        for v in range(vectors):
            if v < filled or first + v * span < n2:  # an absent value must not count as (0 - mean)²
                for k in range(width):
                    deviation = values[v * width + k] - center
                    square_sum += deviation * deviation
        square_sum = warp_sum_butterfly(square_sum)
        if warps > 1:
            square_sum = block_sum(square_sum, buffer)
        scale = float32(1) / math.sqrt(square_sum / cast(n2, buffer) + eps)

        # Epilogue: normalise and store.
        if live:
            for v in range(vectors):
                column = first + v * span
                if v < filled or column < n2:
                    # one element of weight and bias per vector: a vector lies within one channel's run
                    channel = row % groups * (n2 // run) + column // run
                    gamma = element(weight, channel)
                    beta = element(bias, channel)
                    for k in range(width):
                        value = normalised_from_input(values[v * width + k], center, scale)
                        values[v * width + k] = affine(value, gamma, beta)
                    store_vector_from(output, (row, column), values, v * width, width)
            if cuda.threadIdx.x == 0:
                store(mean, row, center)
                store(invvar, row, scale)

    return family_rows


def launch_rows(launch, one: Outputs) -> bool:
    """Queue the kernel and return True if a block can hold a set, else return False."""
    sets = one.sets
    thread_map = thread_map_for(sets, widest(sets.run, one.x, one.output))
    if thread_map is None or one.invvar.dtype.itemsize != 4:  # float64 would need twice the registers
        return False
    # a set of several warps has a block to itself, because its sums go through shared memory and a barrier
    rows = SHARED_BLOCK if thread_map.warps == 1 else 1
    grid = -(-sets.total // rows)
    if grid > GRID_LIMIT:
        return False
    kernel = build(accumulator(one.invvar), thread_map, rows)
    x, output = (reshaped(array, (sets.total, sets.values)) for array in (one.x, one.output))
    view = np.int64(sets.sets), np.int64(sets.run)
    given, results = (x, one.weight, one.bias, one.eps, *view), (one.mean, one.invvar, output)
    launch(kernel, grid, (thread_map.threads, rows), *given, *results)
    return True
