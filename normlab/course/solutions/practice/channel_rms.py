"""RMSNorm over the channels of each pixel. An exercise of tutorial 11, which has the task."""

import math

from normlab.engine import cuda, float32


@cuda.jit
def channel_rms(x, eps, y):
    """A thread per pixel: x, y (samples, channels, pixels). The grid has (blocks of 32 pixels, samples) blocks."""
    # Your lines.
    pixel = cuda.grid(1)
    sample = cuda.blockIdx.y
    if pixel < x.shape[2]:
        squares = float32(0)
        for channel in range(x.shape[1]):
            value = x[sample, channel, pixel]
            squares += value * value
        invvar = float32(1) / math.sqrt(squares / float32(x.shape[1]) + eps)
        for channel in range(x.shape[1]):
            y[sample, channel, pixel] = x[sample, channel, pixel] * invvar
