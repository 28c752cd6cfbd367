"""values: stops at the largest number of elements that was announced once.

Says: no thread wrote it
"""


@cuda.jit
def square(x, y):
    i = cuda.grid(1)
    if i < min(x.shape[0], 200):
        y[i] = x[i] * x[i]
