"""budget: one thread of the block writes the whole row.

Says: loaded by one thread
"""


def layer_norm(x, weight, bias, eps, output, means, invvars):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    if cuda.threadIdx.x == 0:
        for column in range(x.shape[1]):
            output[row, column] = (x[row, column] - mean) * invvar * weight[column] + bias[column]
        means[row] = mean
        invvars[row] = invvar
