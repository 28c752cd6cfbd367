"""Overwrite the gradients of the columns at risk, after the backward's step, with those from the x̂ that was kept.

    grad_input  = (g - mean(g) - x̂ mean(g x̂)) invvar        g = dy gamma, the means as the step has left them
    grad_weight = sum over rows of dy x̂

The columns at risk come as a list of `capacity` slots: columns[slot] is a column's number, or -1 in an empty slot, and
kept[:, slot] is its x̂ (`keep`). The rows are cut into slices. The first kernel writes grad_input and the
partial sum of dy x̂ of each slice; the second kernel adds up the partial sums.
"""

from functools import cache
from typing import Any

from normlab.engine import accumulator, cast, cuda, load, store
from normlab.kernels.plan import Chains
from normlab.kernels.problem import BackwardProblem
from normlab.stages.recompute import affine, element

SLOTS, ROWS = 32, 8  # slots and threads per slot of a block
SLICE_ROWS = 64  # rows per slice at most, as long as MAX_SLICES slices suffice for that: 8 rows per thread
MAX_SLICES = 64  # the second kernel adds up one after another, so more slices would take it longer


@cache
def build(dtype: Any) -> Any:
    """Return the first kernel, for an accumulator dtype."""

    @cuda.jit
    def repair_columns(grad_output, invvar, weight, columns, kept, row_sums, slice_rows, grad_input, partials):
        """Write grad_input of the columns at risk, and each slice's sum of dy x̂ to `partials`.

        Grid (slots / 32, slices), block (32, 8): thread (x, y) has slot x of the block's 32 and every eighth row of the
        slice, from row y on. columns: (capacity,), int32. kept: (n1, capacity). row_sums: (3, n1), with mean(g) in row
        1 and mean(g x̂) in row 2. partials: (slices, capacity), or None without a weight.
        """
        # The thread's rows: grad_input, and its own sum of dy x̂.
        sums = cuda.shared.array((ROWS, SLOTS), dtype)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        slot = cuda.blockIdx.x * SLOTS + x
        column = -1  # nothing to do, except to reach the barrier
        if slot < columns.shape[0]:
            column = columns[slot]
        total = cast(0, sums)
        if column >= 0:
            gamma = element(weight, column)  # once: all rows of the thread have the same column
            row = cuda.blockIdx.y * slice_rows + y
            end = min((cuda.blockIdx.y + 1) * slice_rows, grad_output.shape[0])
            while row < end:
                grad = load(grad_output, (row, column))
                xhat = load(kept, (row, slot))
                away = load(row_sums, (1, row)) + xhat * load(row_sums, (2, row))
                store(grad_input, (row, column), (affine(grad, gamma, None) - away) * load(invvar, row))
                total += grad * xhat  # from the x̂ that was kept, not recomputed: that is what the kept columns are for
                row += ROWS

        # The block's eight sums of each slot.
        if partials is not None:
            sums[y, x] = total
            cuda.syncthreads()  # all sums of a slot are in shared memory before one thread adds them up
            if y == 0 and column >= 0:
                for other in range(1, ROWS):
                    total += sums[other, x]
                store(partials, (cuda.blockIdx.y, slot), total)

    return repair_columns


@cuda.jit
def scatter_sums(partials, columns, gradient):
    """Add up the partial sums of each column at risk, and write the sum over its element of the gradient.

    One thread per slot.
    partials: (slices, capacity). columns: (capacity,), int32. gradient: (n2,).
    """
    slot = cuda.grid(1)
    if slot < columns.shape[0]:
        column = columns[slot]
        if column >= 0:  # -1 in a slot without a column
            total = load(partials, (0, slot))
            for number in range(1, partials.shape[0]):
                total += load(partials, (number, slot))
            store(gradient, column, total)


def _slices(n1: int) -> int:
    """Return the number of slices that n1 rows are cut into."""
    return min(MAX_SLICES, -(-n1 // SLICE_ROWS))


def launch_repair(launch: Any, memory: Any, problem: BackwardProblem, columns: Any, kept: Any) -> None:
    """Queue both kernels, or only the first without a weight. memory: gives scratch. columns, kept: as above."""
    n1, capacity = kept.shape
    partials = None if problem.weight is None else memory.empty((_slices(n1), capacity), problem.invvar.dtype)
    launch(
        build(accumulator(problem.invvar)), (-(-capacity // SLOTS), _slices(n1)), (SLOTS, ROWS),
        problem.grad_output, problem.invvar, problem.weight, columns, kept, problem.row_sums,
        -(-n1 // _slices(n1)), problem.grad_input, partials,
    )  # fmt: skip
    if partials is not None:
        launch(scatter_sums, -(-capacity // SLOTS), SLOTS, partials, columns, problem.grad_weight)


def column_chains(n1: int) -> Chains:
    """Return the chains of grad_weight's sums: one thread's rows, the threads of a slot, the slices."""
    return Chains(-(-n1 // (_slices(n1) * ROWS)) + ROWS + _slices(n1), 0)
