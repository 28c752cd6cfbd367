"""budget: one thread writes the whole row.

Says: loaded by one thread
"""


def group_norm(x, weight, bias, groups, pixels, eps, output):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    channels_of_group = weight.shape[0] // groups
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    if cuda.threadIdx.x == 0:
        for column in range(x.shape[1]):
            channel = row % groups * channels_of_group + column // pixels
            output[row, column] = (x[row, column] - mean) * invvar * weight[channel] + bias[channel]
