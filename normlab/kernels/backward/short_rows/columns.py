"""Add up the columns' sums at the end of the kernel for short rows."""

from functools import cache
from typing import Any

from normlab.engine import cuda, load, store
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.tiles import TileLayout
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.warp import ALL_LANES


@cache
def columns_adder(layout: TileLayout, kind: Kind) -> Any:
    """Return the device function `add_up(shared, place, operands, sums, …)`: the block's sums of the columns.

    The lane groups of a warp add up by shuffles, the warps through shared memory, where the tiles were. A launch of
    one block has the gradients; of several, each writes a row of partial sums.
    """
    lanes, n2, thread_map = layout.lanes, layout.n2, layout.thread_map
    (vectors, width, span, _), elements = thread_map.loop, thread_map.elements
    apart = 2 * n2  # per warp: the weight's sums, then the bias's
    weighted, biased, divided = kind.weighted, kind.biased, kind.memory_efficient
    levels, warps, threads = layout.groups.bit_length() - 1, layout.warps, layout.threads
    turns = -(-n2 // threads)  # a constant: the compiler unrolled a loop without it, with six divisions

    @cuda.jit(device=True)
    def leave_sums(shared, at, place, mine):
        for k in range(elements):
            for level in range(levels):  # over the lanes with the same columns
                mine[k] += cuda.shfl_xor_sync(ALL_LANES, mine[k], lanes << level)
        if place.lane < lanes:  # of lane group 0
            for v in range(vectors):
                for j in range(width):
                    column = place.column + v * span + j
                    if column < n2:
                        store(shared, at + column, mine[v * width + j])

    @cuda.jit(device=True)
    def write_sums(shared, at, gradient, partials, weight, eps):
        for turn in range(turns):
            column = cuda.threadIdx.x + turn * threads
            if column < n2:
                total = load(shared, at + column)
                for warp in range(1, warps):
                    total += load(shared, at + warp * apart + column)
                if partials.shape[0] > 1:
                    store(partials, (cuda.blockIdx.x, column), total)
                else:
                    if divided and weight is not None:  # else the last kernel divides
                        total = total / clamp_by_magnitude(load(weight, column), eps)
                    store(gradient, column, total)

    @cuda.jit(device=True)
    def add_up(shared, place, operands, sums, grad_weight, grad_bias, part_weight, part_bias):
        cuda.syncthreads()  # all warps have stored their last results, which may lie where the sums come now
        if weighted:
            leave_sums(shared, place.warp * apart, place, sums.weight)
        if biased:
            leave_sums(shared, place.warp * apart + n2, place, sums.bias)
        cuda.syncthreads()  # all warps' sums are in shared memory before they are added up
        if weighted:
            write_sums(shared, 0, grad_weight, part_weight, operands.weight, operands.eps)
        if biased:
            write_sums(shared, n2, grad_bias, part_bias, None, None)

    return add_up
