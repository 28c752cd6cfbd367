"""values: right for blocks of 32 threads only.

Says: no thread wrote it
"""


def square(x, y):
    i = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
