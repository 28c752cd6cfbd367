"""35 · A gate after the norm.

Mamba-2 and Qwen3-Next multiply what a norm gives by a gate, which another matrix product has made from
the same input. The gate z goes through silu first, a smooth switch: silu(z) is about z where z is large,
and about 0 where z is far below 0.

    silu = z / (1 + np.exp(-z))
    output = x / np.sqrt((x ** 2).mean(axis=1, keepdims=True) + eps) * weight * silu

z is float32 or float16. It may be far from 0: np.exp(90) is infinite in float32, and inf / inf is NaN.
A gate that is nearly closed has a small silu, not 0, and the output has as many right digits there as
elsewhere. So a formula that subtracts two numbers of almost the same size will not do, and neither will
an exponential in float16.

    row_mean_square(x, row, buffer) → mean square of a row of x, in every thread

Checked: right for any number of columns and gates from -1000 to 1000; the gate loaded once.

To write: about 6 lines.

Tutorial: normlab tutorials 17. This is the last exercise.
"""

import math

from normlab.engine import cuda, float32
from normlab.stages.row import row_mean_square


@cuda.jit
def gated_rms_norm(x, gate, weight, eps, output):
    """A block of 64 threads per row. x, gate, output: (rows, columns). weight: (columns,)."""
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    # Your lines.
