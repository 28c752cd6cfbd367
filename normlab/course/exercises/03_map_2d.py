"""3 · Threads in two dimensions.

A block's threads can be numbered in two directions: a thread then has a cuda.threadIdx.x and a
cuda.threadIdx.y. That suits a matrix, where an element has a row and a column.

In NumPy:

    y = a[:, None] * b[None, :]

Each element of y is a product: y[row, column] = a[row] * b[column]. The block has 8 x 8 threads,
and y may have fewer rows or columns, so both need a guard.

Which number is the row, and which the column? Both ways give right results, but one is slower.
Threads whose numbers x are neighbours belong to the same warp, and a warp stores neighbouring
elements of a row at once. So let x be the column.

Checked: right for 1 to 8 rows and columns; as few sectors stored (pieces of 32 bytes) as there are.

To write: about 4 lines.

Tutorial: normlab tutorials 1. Next: exercise 4, blocks.
"""

from normlab.engine import cuda


@cuda.jit
def outer(a, b, y):
    """y = the products of all pairs: a is (rows,), b (columns,), y (rows, columns). One block of 8 x 8 threads."""
    # Your lines.
