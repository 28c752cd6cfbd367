"""12 · From warps to a block: one barrier too few.

Warps cannot shuffle with each other. They meet in shared memory, an array that all threads of a
block see. Each warp's lane 0 leaves its sum there; then everybody adds up what the warps have left.

But warps do not run in step: one may be far ahead of another. cuda.syncthreads() is a barrier: no
thread goes on before all threads of the block are there. The function below has one, so that no sum
is read before it is written. But the kernel calls it once for each row, with the same buffer, and
now and then a sum is wrong. Rarely, on a GPU: that is what makes such mistakes expensive. The check
looks at what orders two accesses, not at luck, and finds it every time.

Say one warp is done with a row, and goes on to the next, while another is not done yet. What does
the first overwrite that the second still needs?

Checked: right, no races; 2 barriers a row; 1 line added.

To write: 1 line; there is more than one right place.

Tutorial: normlab tutorials 5. Next: exercise 13, row_moments.
"""

from normlab.engine import cuda, float32
from normlab.stages.warp import lane_index, warp_count, warp_index, warp_sum_butterfly


@cuda.jit(device=True)
def block_sum(value, buffer):
    """Return the sum of all threads' `value`, in every thread. `buffer` is shared, with an element for each warp."""
    value = warp_sum_butterfly(value)
    # Your line, if it belongs here.
    if lane_index() == 0:
        buffer[warp_index()] = value
    cuda.syncthreads()  # all sums are in shared memory before any of them is read
    total = float32(0)
    for warp in range(warp_count()):
        total += buffer[warp]
        # Your line, if it belongs here.
    # Your line, if it belongs here.
    cuda.syncthreads()  # all threads have read this row's sums before any warp leaves the next row's
    return total


@cuda.jit
def sum_rows(x, sums):
    """One block for all rows: x is (rows, columns) with a column for each thread, sums is (rows,)."""
    buffer = cuda.shared.array(32, float32)
    for row in range(x.shape[0]):
        total = block_sum(x[row, cuda.threadIdx.x], buffer)
        if cuda.threadIdx.x == 0:
            sums[row] = total
