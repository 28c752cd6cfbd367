"""budget: each thread writes a stretch of its own, as often as with neighbouring lanes, but to more sectors.

Says: sectors stored, at most 40 allowed
"""


def group_norm(x, weight, bias, groups, pixels, eps, output):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    channels_of_group = weight.shape[0] // groups
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    share = (x.shape[1] + 63) // 64
    for column in range(cuda.threadIdx.x * share, min(cuda.threadIdx.x * share + share, x.shape[1])):
        channel = row % groups * channels_of_group + column // pixels
        output[row, column] = (x[row, column] - mean) * invvar * weight[channel] + bias[channel]
