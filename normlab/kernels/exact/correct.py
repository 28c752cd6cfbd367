"""Correct each row's sum of g x̂ = dy γ x̂ for the columns at risk, before the backward's step runs.

From the saved output y the step adds dy (y - β) for every column. In a column at risk y - β has lost γ x̂, so one warp
per row adds up dy (γ x̂ - (y - β)) from the kept x̂ (`keep`), and the step adds this sum to its own.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load, store
from normlab.kernels.plan import Chains
from normlab.kernels.problem import BackwardProblem
from normlab.stages.recompute import affine, element, without_bias
from normlab.stages.warp import warp_sum_butterfly

SLOTS, ROWS = 32, 8  # per block: a warp per row, because a warp's sum needs no barrier


@cuda.jit
def correct_rows(grad_output, saved, weight, bias, columns, kept, row_sums):
    """Write each row's correction to row 0 of row_sums, (3, n1), accumulator dtype. Grid n1 / 8, block (32, 8).

    grad_output, saved (the output): (n1, n2). weight, bias: (n2,) or None. columns, kept: as for `keep_columns`.
    """
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
    if row < saved.shape[0]:
        correction = cast(0, row_sums)
        slot = cuda.threadIdx.x
        while slot < columns.shape[0]:
            column = columns[slot]
            if column >= 0:  # -1 in a slot without a column
                right = affine(load(kept, (row, slot)), element(weight, column), None)
                # what the step adds for this column, with the same roundings, so that the two cancel
                added = without_bias(load(saved, (row, column)), element(bias, column))
                correction += load(grad_output, (row, column)) * (right - added)
            slot += SLOTS
        correction = warp_sum_butterfly(correction)
        if cuda.threadIdx.x == 0:
            store(row_sums, (0, row), correction)


def launch_correction(launch: Any, problem: BackwardProblem, columns: Any, kept: Any) -> None:
    """Queue `correct_rows` for a backward from the output. columns, kept: as for `keep_columns`."""
    launch(
        correct_rows, -(-problem.saved.shape[0] // ROWS), (SLOTS, ROWS),
        problem.grad_output, problem.saved, problem.weight, problem.bias, columns, kept, problem.row_sums,
    )  # fmt: skip


@cache
def row_chains(capacity: int) -> Chains:
    """Return the longest chain of a row's correction: a lane's slots, then the butterfly's 5 levels."""
    return Chains(-(-capacity // SLOTS) + 1, 5)
