"""numpy: an array in a kernel has no methods.

Says: no NumPy methods
"""


def layer_norm(x, weight, bias, eps, output, means, invvars):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean, variance = row_moments(x, row, buffer)
    variance = x[row].var()
    invvar = float32(1) / math.sqrt(variance + eps)
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        output[row, column] = (x[row, column] - mean) * invvar * weight[column] + bias[column]
    if cuda.threadIdx.x == 0:
        means[row] = mean
        invvars[row] = invvar
