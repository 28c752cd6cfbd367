"""18 · LayerNorm, backward: the gradient of the weight, by two kernels.

    xhat = (x - mean[:, None]) * invvar[:, None]
    grad_weight = (grad_output * xhat).sum(axis=0)

A sum down every column. A thread for each column reads well (neighbouring threads, neighbouring
columns) but walks down the whole matrix alone, and 1000 columns are few threads for a GPU. So the
rows are dealt out to `parts` rows of blocks: part p takes rows p, p + parts, p + 2 parts, … and
leaves its sums in partial[p]. A second kernel adds up the parts. No two threads ever write to the
same place, so there is no race, and the same bits come out every time.

Checked: right for any shape and number of parts, in partial and in grad_weight; for 32 rows, 64
columns and 4 parts 672 sectors of loads: 512 for x and grad_output, each once, 128 for means and
invvars, 32 for the partial sums.

To write: about 12 lines.

Tutorial: normlab tutorials 8. Next: exercise 19, recompute.
"""

from normlab.engine import cuda, float32


@cuda.jit
def partial_sums(grad_output, x, means, invvars, partial):
    """A thread for each column and part; the grid has (blocks of columns, parts) blocks of 32.

    grad_output, x: (rows, columns). means, invvars: (rows,). partial: (parts, columns).
    """
    column = cuda.grid(1)
    part = cuda.blockIdx.y
    # Your lines.


@cuda.jit
def final_sums(partial, grad_weight):
    """A thread for each column: partial (parts, columns), grad_weight (columns,)."""
    column = cuda.grid(1)
    # Your lines.
