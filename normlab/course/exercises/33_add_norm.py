"""33 · Add, then normalise, in one kernel.

Between two blocks of a transformer the last block's result x is added to the residual stream, and the
sum is normalised for the next block. Here one kernel does both. Both results are stored, because the
next addition needs the sum:

    new_residual = x + residual                        in the residual's dtype
    s = new_residual.astype(np.float32)
    output = s / np.sqrt((s ** 2).mean(axis=1, keepdims=True) + eps) * weight

x is float16. The residual is float32 or float16. A float16 sum is rounded when it is stored, and the
norm is that of the rounded numbers: the next layers see only these.

Often the caller needs the old residual no more, and passes one array as residual and as new_residual.
Then the old value is gone once the sum is stored.

There may be fewer blocks than rows: block b takes rows b, b + gridDim.x, b + 2 * gridDim.x, and so on.

    block_sum(value, buffer) → the sum over the block, in every thread

takes the sum of each warp in its lane 0, which warp_sum_butterfly(value) makes.

Checked: right for both dtypes, in place or not, for any numbers of blocks, rows and columns; x and residual
loaded once, the sum that was stored at most twice.

To write: about 10 lines.

Tutorial: normlab tutorials 17. Next: exercise 34, head_norm.
"""

import math

from normlab.engine import cuda, float32
from normlab.stages.block import block_sum
from normlab.stages.warp import warp_sum_butterfly


@cuda.jit
def add_rms_norm(x, residual, weight, eps, new_residual, output):
    """Blocks of 64 threads. x, residual, new_residual, output: (rows, columns). weight: (columns,).

    new_residual may be the same array as residual.
    """
    buffer = cuda.shared.array((2, 2), float32)
    # Your lines.
