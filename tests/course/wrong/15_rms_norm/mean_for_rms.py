"""values: RMSNorm subtracts no mean.

Says: rms = 1
"""


def norm(x, weight, bias, eps, rms, output):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean = float32(0)
    invvar = float32(1)
    mean, spread = row_moments(x, row, buffer)
    if rms:
        spread = row_mean_square(x, row, buffer)
    invvar = float32(1) / math.sqrt(spread + eps)
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        value = (x[row, column] - mean) * invvar * weight[column]
        if not rms:
            value += bias[column]
        output[row, column] = value
