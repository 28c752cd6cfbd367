"""budget: one of the two warps writes the whole row, and the other waits.

Says: let all threads share the work
"""


def layer_norm(x, weight, bias, eps, output, means, invvars):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean, variance = row_moments(x, row, buffer)
    invvar = float32(1) / math.sqrt(variance + eps)
    if cuda.threadIdx.x < 32:
        for column in range(cuda.threadIdx.x, x.shape[1], 32):
            output[row, column] = (x[row, column] - mean) * invvar * weight[column] + bias[column]
    if cuda.threadIdx.x == 0:
        means[row] = mean
        invvars[row] = invvar
