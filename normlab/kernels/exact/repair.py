"""After the backward's step: the gradients of the columns at risk, from the x̂ that was kept.

grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar        g = dy gamma, the means as the step has left them
grad_weight = sum over rows of dy x̂, in two kernels: parts of the rows, then the parts
"""

from functools import cache
from typing import Any

from normlab.engine import accumulator, cast, cuda, load, store
from normlab.kernels.plan import Chains
from normlab.kernels.problem import BackwardProblem
from normlab.stages.recompute import affine, element

SLOTS, ROWS = 32, 8  # of a block
ROWS_A_PART = 64  # at least
MAX_PARTS = 64


@cache
def build(dtype: Any) -> Any:
    """The first kernel, for an accumulator dtype."""

    @cuda.jit
    def repair_columns(grad_output, invvar, weight, columns, kept, row_sums, rows_a_part, grad_input, parts):
        """Grid (slots / 32, parts), block (32, 8). parts: (parts, capacity), or None without a weight."""
        sums = cuda.shared.array((ROWS, SLOTS), dtype)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        slot = cuda.blockIdx.x * SLOTS + x
        column = -1
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
    """A thread a slot adds up its parts, (parts, capacity), into its column of the gradient, (n2,)."""
    slot = cuda.grid(1)
    if slot < columns.shape[0]:
        column = columns[slot]
        if column >= 0:
            total = load(parts, (0, slot))
            for part in range(1, parts.shape[0]):
                total += load(parts, (part, slot))
            store(gradient, column, total)


def _parts(n1: int) -> int:
    return min(MAX_PARTS, -(-n1 // ROWS_A_PART))


def launch_repair(launch: Any, memory: Any, problem: BackwardProblem, columns: Any, kept: Any) -> None:
    """Queue the kernels."""
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
    """The chains of these sums."""
    return Chains(-(-n1 // (_parts(n1) * ROWS)) + ROWS + _parts(n1), 0)
