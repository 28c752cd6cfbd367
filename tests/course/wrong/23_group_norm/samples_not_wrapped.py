"""out-of-bounds: the second sample's channels begin anew.

Says: samples = 2
"""


def group_norm(x, weight, bias, groups, pixels, eps, output):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    channels_of_group = weight.shape[0] // groups
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    first_channel = row * channels_of_group
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        channel = first_channel + column // pixels
        output[row, column] = (x[row, column] - mean) * invvar * weight[channel] + bias[channel]
