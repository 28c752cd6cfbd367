"""values: one norm for both.

Says: rms = 0
"""


def norm(x, weight, bias, eps, rms, output):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean = float32(0)
    invvar = float32(1)
    invvar = float32(1) / math.sqrt(row_mean_square(x, row, buffer) + eps)
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        value = (x[row, column] - mean) * invvar * weight[column]
        value += float32(0)
        output[row, column] = value
