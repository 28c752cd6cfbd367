"""RMSNorm's gradient of the input. An exercise of tutorial 7, which has the task."""

from normlab.engine import cuda, float32
from normlab.stages.block import block_sum
from normlab.stages.warp import warp_sum_butterfly


@cuda.jit
def rms_grad_input(grad_output, x, invvars, weight, result):
    """A block of 64 threads per row: grad_output, x, result (rows, columns); invvars (rows,); weight (columns,)."""
    buffer = cuda.shared.array((2, 2), float32)
    # Your lines.
    row = cuda.blockIdx.x
    invvar = invvars[row]
    sum_gx = float32(0)
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        sum_gx += grad_output[row, column] * weight[column] * (x[row, column] * invvar)
    mean_gx = block_sum(warp_sum_butterfly(sum_gx), buffer) / float32(x.shape[1])
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        g = grad_output[row, column] * weight[column]
        result[row, column] = (g - x[row, column] * invvar * mean_gx) * invvar
