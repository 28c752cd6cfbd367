"""budget: one of the two warps writes the whole row, and the other waits.

Says: let all threads share the work
"""


def group_norm(x, weight, bias, groups, pixels, eps, output):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    channels_of_group = weight.shape[0] // groups
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    if cuda.threadIdx.x < 32:
        for column in range(cuda.threadIdx.x, x.shape[1], 32):
            channel = row % groups * channels_of_group + column // pixels
            output[row, column] = (x[row, column] - mean) * invvar * weight[channel] + bias[channel]
