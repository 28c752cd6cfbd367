"""Overwrite the gradients of the columns at risk, after the backward's step, with those from the x̂ that was kept.

    grad_input  = (g - mean(g) - x̂ mean(g x̂)) invvar        g = dy gamma, the means as the step has left them
    grad_weight = sum over rows of dy x̂

The columns at risk come as a list of `capacity` slots: columns[slot] is a column's number, or -1 in an empty slot, and
kept[:, slot] is its x̂ (`keep`). The rows are cut into parts. The first kernel writes grad_input and each part's sum of
dy x̂; the second kernel adds up the parts.
"""

from functools import cache
from typing import Any

from normlab.engine import accumulator, cast, cuda, load, store
from normlab.kernels.plan import Chains
from normlab.kernels.problem import BackwardProblem
from normlab.stages.recompute import affine, element

SLOTS, ROWS = 32, 8  # slots and threads per slot of a block
ROWS_A_PART = 64  # rows per part at most, as long as MAX_PARTS parts suffice for that
MAX_PARTS = 64


@cache
def build(dtype: Any) -> Any:
    """Return the first kernel, for an accumulator dtype."""

    @cuda.jit
    def repair_columns(grad_output, invvar, weight, columns, kept, row_sums, rows_a_part, grad_input, parts):
        """Write grad_input of the columns at risk, and each part's sum of dy x̂ to `parts`.

        Grid (slots / 32, parts), block (32, 8): thread (x, y) has slot x of the block's 32 and every eighth row of the
        part, from row y on. columns: (capacity,), int32. kept: (n1, capacity). row_sums: (3, n1), with mean(g) in row 1
        and mean(g x̂) in row 2. parts: (parts, capacity), or None without a weight.
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
            gamma = element(weight, column)
            row = cuda.blockIdx.y * rows_a_part + y
            end = min((cuda.blockIdx.y + 1) * rows_a_part, grad_output.shape[0])
            while row < end:
                grad = load(grad_output, (row, column))
                xhat = load(kept, (row, slot))
                away = load(row_sums, (1, row)) + xhat * load(row_sums, (2, row))
                store(grad_input, (row, column), (affine(grad, gamma, None) - away) * load(invvar, row))
                total += grad * xhat
                row += ROWS

        # The block's eight sums of each slot.
        if parts is not None:
            sums[y, x] = total
            cuda.syncthreads()  # all sums of a slot are in shared memory before one thread adds them up
            if y == 0 and column >= 0:
                for other in range(1, ROWS):
                    total += sums[other, x]
                store(parts, (cuda.blockIdx.y, slot), total)

    return repair_columns


@cuda.jit
def scatter_sums(parts, columns, gradient):
    """Add up the parts of each column at risk, and write the sum over its element of the gradient. One thread per slot.

    parts: (parts, capacity). columns: (capacity,), int32. gradient: (n2,).
    """
    slot = cuda.grid(1)
    if slot < columns.shape[0]:
        column = columns[slot]
        if column >= 0:
            total = load(parts, (0, slot))
            for part in range(1, parts.shape[0]):
                total += load(parts, (part, slot))
            store(gradient, column, total)


def _parts(n1: int) -> int:
    """Return the number of parts that n1 rows are cut into."""
    return min(MAX_PARTS, -(-n1 // ROWS_A_PART))


def launch_repair(launch: Any, memory: Any, problem: BackwardProblem, columns: Any, kept: Any) -> None:
    """Queue both kernels, or only the first without a weight. memory: gives scratch. columns, kept: as above."""
    n1, capacity = kept.shape
    parts = None if problem.weight is None else memory.empty((_parts(n1), capacity), problem.invvar.dtype)
    launch(
        build(accumulator(problem.invvar)), (-(-capacity // SLOTS), _parts(n1)), (SLOTS, ROWS),
        problem.grad_output, problem.invvar, problem.weight, columns, kept, problem.row_sums,
        -(-n1 // _parts(n1)), problem.grad_input, parts,
    )  # fmt: skip
    if parts is not None:
        launch(scatter_sums, -(-capacity // SLOTS), SLOTS, parts, columns, problem.grad_weight)


def column_chains(n1: int) -> Chains:
    """Return the chains of grad_weight's sums: one thread's rows, the threads of a slot, the parts."""
    return Chains(-(-n1 // (_parts(n1) * ROWS)) + ROWS + _parts(n1), 0)
