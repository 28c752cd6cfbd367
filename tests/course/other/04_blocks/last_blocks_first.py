"""The blocks may take their parts in any order."""


def square(x, y):
    block = cuda.gridDim.x - 1 - cuda.blockIdx.x
    i = block * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
