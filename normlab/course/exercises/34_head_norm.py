"""34 · 1 + w, for each head.

Attention compares queries and keys, each cut into heads. Several models normalise each head of the
queries first, and Gemma's norms scale by 1 + w, so that a weight of 0 leaves the head as it is.

One matrix product has made queries, keys and values of all tokens. A token's row of `fused` holds its
queries first, head after head, then keys and values. In NumPy:

    tokens, heads, columns = output.shape
    x = fused[:, : heads * columns].reshape(tokens, heads, columns)
    output = x / np.sqrt((x ** 2).mean(axis=2, keepdims=True) + eps) * (1 + weight)

All heads share the weight. It is float16, and it may be small: in float16, 1 + 0.0003 is 1.

A head is short, so a warp takes one, and a block of four warps takes four. Warp 0 of the grid takes
the first token's first head, the next warp its second head, and so on. The last block may have warps
without a head.

    warp_sum_butterfly(value) → the sum over the 32 lanes, in every lane; all 32 have to call it

Checked: right for any numbers of tokens, heads and columns; no barrier and no shared memory; neighbouring
lanes load neighbouring elements.

To write: about 11 lines.

Tutorial: normlab tutorials 17. Next: exercise 35, gated_norm.
"""

import math

from normlab.engine import cuda, float32
from normlab.stages.warp import warp_sum_butterfly


@cuda.jit
def head_norm(fused, weight, eps, output):
    """Blocks of 4 warps. fused: (tokens, width); weight: (columns,); output: (tokens, heads, columns)."""
    warp = cuda.grid(1) >> 5
    lane = cuda.threadIdx.x & 31
    # Your lines.
