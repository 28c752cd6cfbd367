"""23 · Group norm from row moments.

Images are (samples, channels, pixels). Group norm deals the channels out to groups of neighbours,
and normalises all of a group's values in a sample together; weight and bias belong to channels. In
NumPy:

    rows = x.reshape(samples * groups, channels_of_group * pixels)
    xhat = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + eps)
    output = xhat.reshape(x.shape) * weight[:, None] + bias[:, None]

As a group's channels are neighbours in memory, a group of a sample is a row, and row_moments does
it. So this is LayerNorm, but for one thing: which channel, of all of them, does an element of a row
belong to?

Checked: right for any number of channels, groups and pixels; 8 stores, of 32 sectors in all, for 2
rows of 128 elements, and no thread that touches more than 12 elements of global memory.

To write: about 6 lines.

Tutorial: normlab tutorials 11. Next: exercise 24, sgemm_tile.
"""

import math

from normlab.engine import cuda, float32
from normlab.stages.row import row_moments


@cuda.jit
def group_norm(x, weight, bias, groups, pixels, eps, output):
    """A block of 64 threads per row, and the rows of a sample below each other: sample * groups + group.

    x, output: (samples * groups, channels of a group * pixels). weight, bias: (channels,).
    """
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    channels_of_group = weight.shape[0] // groups
    mean, variance = row_moments(x, row, buffer)
    # Your lines.
    invvar = float32(1) / math.sqrt(variance + eps)
    first_channel = row % groups * channels_of_group
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        channel = first_channel + column // pixels
        output[row, column] = (x[row, column] - mean) * invvar * weight[channel] + bias[channel]
