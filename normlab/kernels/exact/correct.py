"""Compute what the columns at risk lack in each row's sum of g x̂, before the backward's step runs.

Recomputing, a step adds dy (y - β) for every column, although γ x̂ is meant. One warp per row adds up the differences.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load, store
from normlab.kernels.plan import Chains
from normlab.kernels.problem import BackwardProblem
from normlab.stages.recompute import affine, element, without_bias
from normlab.stages.warp import warp_sum_butterfly

SLOTS, ROWS = 32, 8  # of a block: a warp per row, whose sum needs no barrier


@cuda.jit
def correct_rows(grad_output, saved, weight, bias, columns, kept, row_sums):
    """Grid rows / 8, block (32, 8). row_sums: (3, n1); its first row is written. The rest: as `keep` and the steps."""
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
    if row < saved.shape[0]:
        lacking = cast(0, row_sums)
        slot = cuda.threadIdx.x
        while slot < columns.shape[0]:
            column = columns[slot]
            if column >= 0:  # -1 in a slot without a column
                meant = affine(load(kept, (row, slot)), element(weight, column), None)
                # what the step adds for this column, in the same rounding, so that it cancels
                taken = without_bias(load(saved, (row, column)), element(bias, column))
                lacking += load(grad_output, (row, column)) * (meant - taken)
            slot += SLOTS
        lacking = warp_sum_butterfly(lacking)
        if cuda.threadIdx.x == 0:
            store(row_sums, (0, row), lacking)


def launch_correction(launch: Any, problem: BackwardProblem, columns: Any, kept: Any) -> None:
    """Queue the kernel."""
    launch(
        correct_rows, -(-problem.saved.shape[0] // ROWS), (SLOTS, ROWS),
        problem.grad_output, problem.saved, problem.weight, problem.bias, columns, kept, problem.row_sums,
    )  # fmt: skip


@cache
def row_chains(capacity: int) -> Chains:
    """Return the chains of these sums."""
    return Chains(-(-capacity // SLOTS) + 1, 5)
