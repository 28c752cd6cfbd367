"""23 · Group norm from row moments.

Images are (samples, channels, pixels). Group norm cuts the channels into groups of neighbours, and
normalises all values of a group in a sample together. Each channel has a weight and a bias. In
NumPy:

    rows = x.reshape(samples * groups, channels_of_group * pixels)
    xhat = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + eps)
    output = xhat.reshape(x.shape) * weight[:, None] + bias[:, None]

The channels of a group are neighbours in memory, so each group of each sample is a row, and
row_moments computes its mean and variance. This is LayerNorm, except for one question: which of all
channels does an element of a row belong to?

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
    """One block of 64 threads per row; row = sample * groups + group.

    x, output: (samples * groups, channels of a group * pixels). weight, bias: (channels,).
    """
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    channels_of_group = weight.shape[0] // groups
    mean, variance = row_moments(x, row, buffer)
    # Your lines.
