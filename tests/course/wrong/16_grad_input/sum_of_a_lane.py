"""values: block_sums wants the sum of each warp in its lane 0, and gets one lane's.

Says: columns = 2
"""


def grad_input(grad_output, x, means, invvars, weight, result):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    mean = means[row]
    invvar = invvars[row]
    sum_g = float32(0)
    sum_gx = float32(0)
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        g = grad_output[row, column] * weight[column]
        sum_g += g
        sum_gx += g * ((x[row, column] - mean) * invvar)
    sum_g, sum_gx = block_sums(sum_g, sum_gx, buffer)
    columns = float32(x.shape[1])
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        g = grad_output[row, column] * weight[column]
        normalised = (x[row, column] - mean) * invvar
        result[row, column] = (g - sum_g / columns - normalised * (sum_gx / columns)) * invvar
