"""A while loop, intermediate names, a thread other than 0 that writes."""


def layer_norm(x, weight, bias, eps, output, means, invvars):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean, variance = row_moments(x, row, buffer)
    root = math.sqrt(variance + eps)
    column = cuda.threadIdx.x
    while column < x.shape[1]:
        normalised = (x[row, column] - mean) / root
        output[row, column] = normalised * weight[column] + bias[column]
        column += cuda.blockDim.x
    if cuda.threadIdx.x == 63:
        means[row] = mean
        invvars[row] = 1 / root
