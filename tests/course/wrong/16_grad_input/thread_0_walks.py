"""budget: one thread does it all, while 63 watch.

Says: loaded by one thread
"""


def grad_input(grad_output, x, means, invvars, weight, result):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    mean = means[row]
    invvar = invvars[row]
    if cuda.threadIdx.x == 0:
        sum_g = float32(0)
        sum_gx = float32(0)
        for column in range(x.shape[1]):
            g = grad_output[row, column] * weight[column]
            sum_g += g
            sum_gx += g * ((x[row, column] - mean) * invvar)
        for column in range(x.shape[1]):
            g = grad_output[row, column] * weight[column]
            normalised = (x[row, column] - mean) * invvar
            result[row, column] = (g - sum_g / x.shape[1] - normalised * (sum_gx / x.shape[1])) * invvar
