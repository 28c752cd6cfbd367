"""27 · Softmax, and one pass for both statistics.

In NumPy the softmax of a row is

    maximum = x.max()
    y = np.exp(x - maximum) / np.exp(x - maximum).sum()

The maximum is subtracted because exp(1000) is infinite in float32. Written like that, a kernel reads
the row three times: for the maximum, for the sum, and for y. But the sum need not wait for the
maximum. Keep (maximum, total) of the values so far, where total = sum of exp(value - maximum). Two
groups become one as in Chan's merge, only with another correction:

    maximum = max(maximum_a, maximum_b)
    total = total_a * exp(maximum_a - maximum) + total_b * exp(maximum_b - maximum)

One value is a group, too: (value, 1). So one pass gives both statistics, and a second pass y.

A group without values is (-inf, 0), and two of them together as well. What does the formula say
there? A row may hold -inf, where a mask has taken a value away; its softmax there is 0. A row of
-inf only has no softmax: y is NaN, as in PyTorch.

Checked: right for any number of columns, for values near 10,000, rising values and -inf; the row
loaded twice, not three times (counted in sectors); at most 64 exchanges a row (shuffles and accesses
of shared memory, counted by warps).

To write: about 20 lines.

Tutorial: normlab tutorials 5. Next: exercise 28, histogram.
"""

import math

from normlab.engine import cuda, float32


@cuda.jit(device=True)
def merge(maximum_a, total_a, maximum_b, total_b):
    """Return (maximum, total) of two groups of values together. A group without values is (-inf, 0)."""
    # Your lines.


@cuda.jit
def softmax(x, y):
    """A block of 64 threads per row: x and y are (rows, columns)."""
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    # Your lines.
