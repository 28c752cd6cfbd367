"""14 · LayerNorm, forward.

    mean = x.mean(axis=1, keepdims=True)
    invvar = 1 / np.sqrt(x.var(axis=1, keepdims=True) + eps)
    output = (x - mean) * invvar * weight + bias

row_moments gives every thread of the block mean and variance of the block's row. What is left is
one more walk along the row, in the same manner as before: neighbouring threads take neighbouring
columns. The backward pass will want mean and invvar, so one thread of the block writes these down,
too.

In a kernel a square root is math.sqrt. Subtract the mean first, as the formula does. Multiplied out,
x · invvar - mean · invvar is the difference of two large numbers, and loses digits.

Checked: right for any number of columns; on 2 rows of 256 columns 20 stores (a warp stores 32
neighbouring elements at once: 16 for the output, 4 for means and invvars), and no thread that
touches more than 24 elements of global memory.

To write: about 7 lines.

Tutorial: normlab tutorials 6. Next: exercise 15, rms_norm.
"""

import math

from normlab.engine import cuda, float32
from normlab.stages.row import row_moments


@cuda.jit
def layer_norm(x, weight, bias, eps, output, means, invvars):
    """A block of 64 threads per row.

    x, output: (rows, columns). weight, bias: (columns,). means, invvars: (rows,).
    """
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean, variance = row_moments(x, row, buffer)
    # Your lines.
