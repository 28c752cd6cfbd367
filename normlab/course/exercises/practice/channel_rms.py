"""RMSNorm over the channels of each pixel. An exercise of tutorial 11, which has the task."""

import math

from normlab.engine import cuda, float32


@cuda.jit
def channel_rms(x, eps, y):
    """A thread per pixel: x, y (samples, channels, pixels). The grid has (blocks of 32 pixels, samples) blocks."""
    # Your lines.
