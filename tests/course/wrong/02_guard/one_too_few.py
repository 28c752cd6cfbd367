"""values: the last element is left out.

Says: no thread wrote it
"""


def negate(x, y):
    i = cuda.threadIdx.x
    if i < x.shape[0] - 1:
        y[i] = -x[i]
