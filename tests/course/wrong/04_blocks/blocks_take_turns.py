"""budget: neighbouring threads are as far apart as there are blocks.

Says: sectors
"""


def square(x, y):
    i = cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
