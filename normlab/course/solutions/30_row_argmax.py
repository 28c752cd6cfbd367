"""30 · The largest element, and where it stands.

In NumPy:

    indices = x.argmax(axis=1)
    maxima = np.take_along_axis(x, indices[:, None], 1)[:, 0]

A maximum needs no order: max(a, b) is max(b, a). An index does. If the largest value stands in a row
twice, the lowest index wins, and the result must not depend on how the row was shared out among
threads. A NaN counts as larger than every number, as in NumPy and PyTorch, so the first NaN wins.

So write down first which of two candidates (value, index) is the better one, and mind that every
comparison with a NaN is False, even value == value. With that function it is a tree like others:
each thread walks through its part of the row, lanes exchange candidates by shuffles, warps through
shared memory. A thread without elements needs a candidate that loses against all others, also in a
row of -inf only.

Checked: right for any number of columns, with ties, NaN and -inf; the row loaded once; at most 56
exchanges a row (shuffles and accesses of shared memory, counted by warps).

To write: about 25 lines.

Tutorial: normlab tutorials 5. Next: exercise 31, top_two.
"""

import math

from normlab.engine import cuda, float32, int32


@cuda.jit(device=True)
def better(value_a, index_a, value_b, index_b):
    """Return the better (value, index) of two: a NaN before the larger value before the lower index."""
    # Your lines.
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    if nan_a or nan_b:
        a_wins = nan_a and not (nan_b and index_b < index_a)
    elif value_a == value_b:
        a_wins = index_a < index_b
    else:
        a_wins = value_a > value_b
    if a_wins:
        return value_a, index_a
    return value_b, index_b


@cuda.jit
def argmax(x, maxima, indices):
    """A block of 64 threads per row: x is (rows, columns), maxima is (rows,), indices is (rows,), of int32."""
    values = cuda.shared.array(2, float32)
    places = cuda.shared.array(2, int32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    columns = x.shape[1]
    # Your lines.
    value = float32(-math.inf)
    index = int32(columns)  # loses against every element
    for column in range(thread, columns, cuda.blockDim.x):
        value, index = better(value, index, x[row, column], int32(column))
    for level in range(5):
        value_b = cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
        index_b = cuda.shfl_xor_sync(0xFFFFFFFF, index, 16 >> level)
        value, index = better(value, index, value_b, index_b)
    if thread % 32 == 0:
        values[thread // 32] = value
        places[thread // 32] = index
    cuda.syncthreads()  # both warps have written before thread 0 reads
    if thread == 0:
        maxima[row], indices[row] = better(values[0], places[0], values[1], places[1])
