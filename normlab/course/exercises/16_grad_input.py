"""16 · LayerNorm, backward: the gradient of the input.

Going back, a layer is given grad_output, the loss's derivative by each output, and owes grad_input.
With the normalised x̂ = (x - mean) · invvar and g = grad_output · weight, the chain rule gives for
each row

    grad_input = (g - g.mean() - x̂ * (g * x̂).mean()) * invvar

The two means are over the row. The one is there because shifting a row changes nothing, the other
because scaling it does not either. So: one walk along the row for two sums, a sum over the block
for each, one more walk for the results.

    block_sums(first, second, buffer) → both sums over the block, in every thread

takes the sums of each warp in its lane 0: warp_sum_butterfly(value) makes one of those.

Checked: right for any number of columns; for 256 columns 52 loads (of 32 neighbouring elements at once)
and 8 stores, and no thread that touches more than 18 elements of global memory.

To write: about 15 lines.

Tutorial: normlab tutorials 7. Next: exercise 17, padded_tile.
"""

from normlab.engine import cuda, float32
from normlab.stages.block import block_sums
from normlab.stages.warp import warp_sum_butterfly


@cuda.jit
def grad_input(grad_output, x, means, invvars, weight, result):
    """A block of 64 threads per row.

    grad_output, x, result: (rows, columns). means, invvars: (rows,). weight: (columns,).
    """
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    mean = means[row]
    invvar = invvars[row]
    # Your lines.
