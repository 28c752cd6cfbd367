"""RMSNorm's gradient of the input. An exercise of tutorial 7, which has the task."""

from normlab.engine import cuda, float32
from normlab.stages.block import block_sum
from normlab.stages.warp import warp_sum_butterfly


@cuda.jit
def rms_grad_input(grad_output, x, invvars, weight, result):
    """A block of 64 threads per row: grad_output, x, result (rows, columns); invvars (rows,); weight (columns,)."""
    buffer = cuda.shared.array((2, 2), float32)
    # Your lines.
