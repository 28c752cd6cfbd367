"""values: a block of 64 threads, so 64 columns: the shape of the example.

Says: columns = 65
"""


def layer_norm(x, weight, bias, eps, output, means, invvars):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    column = cuda.threadIdx.x
    if column < x.shape[1]:
        output[row, column] = (x[row, column] - mean) * invvar * weight[column] + bias[column]
    if cuda.threadIdx.x == 0:
        means[row] = mean
        invvars[row] = invvar
