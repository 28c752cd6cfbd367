"""Find a block's maximum. An exercise of tutorial 5, which has the task."""

from normlab.engine import cuda, float32


@cuda.jit
def block_max(x, maxima):
    """A block of 128 threads per row: x and maxima are (rows, 128); every thread writes its row's maximum."""
    # Your lines.
    buffer = cuda.shared.array(4, float32)
    row = cuda.blockIdx.x
    i = cuda.threadIdx.x
    value = x[row, i]
    for level in range(5):
        value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level))
    if i % 32 == 0:
        buffer[i // 32] = value
    cuda.syncthreads()  # all four maxima are there before any of them is read
    for warp in range(4):
        value = max(value, buffer[warp])
    maxima[row, i] = value
