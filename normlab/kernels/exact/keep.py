"""Keep x̂ of the columns at risk in a compact array, rounded as the output is, for the exact mode's backward."""

from typing import Any

from normlab.engine import cuda, load, store
from normlab.kernels.plan import GRID_LIMIT_Y
from normlab.stages.recompute import element, normalised_from_input

SLOTS, ROWS = 32, 8  # of a block: a warp per row, so that its stores to `kept` are side by side


@cuda.jit
def keep_columns(x, mean, invvar, columns, kept):
    """Store x̂ of each column at risk in its slot of `kept`. Grid (slots / 32, rows / 8), block (32, 8).

    Neighbouring lanes take neighbouring slots, which mostly have columns near each other.

    x: (n1, n2); mean: (n1,) or None; invvar: (n1,); columns: (capacity,), int32, -1 in slots without a column;
    kept: (n1, capacity), the output's dtype.
    """
    slot = cuda.blockIdx.x * SLOTS + cuda.threadIdx.x
    if slot < columns.shape[0]:
        column = columns[slot]
        if column >= 0:  # -1 in a slot without a column
            row = cuda.blockIdx.y * ROWS + cuda.threadIdx.y
            while row < x.shape[0]:
                xhat = normalised_from_input(load(x, (row, column)), element(mean, row), load(invvar, row))
                store(kept, (row, slot), xhat)
                # A grid has at most 65,535 blocks along y, so a block may have further rows.
                row += ROWS * cuda.gridDim.y


def launch_keeping(launch: Any, x: Any, mean: Any, invvar: Any, columns: Any, kept: Any) -> None:
    """Queue the kernel."""
    grid = -(-columns.shape[0] // SLOTS), min(GRID_LIMIT_Y, -(-x.shape[0] // ROWS))
    launch(keep_columns, grid, (SLOTS, ROWS), x, mean, invvar, columns, kept)
